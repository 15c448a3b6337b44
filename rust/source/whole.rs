//! Small objects that are read and written whole, such as saved selections.

use std::collections::BTreeMap;

use bytes::Bytes;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};

use super::{Connection, Location, Store, Written, error};
use crate::error::{Error, Result};

/// One object by its URI, ready to be read or written.
#[derive(Debug)]
pub struct WholeObject {
    connection: Connection,
    location: Location,
}

impl WholeObject {
    /// Connects to the store of `uri`, a local path or a URI.
    ///
    /// # Errors
    ///
    /// [`Error::Uri`] if it does not name one object, [`Error::Setting`] for options that do not work.
    pub fn connect(uri: &str, storage_options: &BTreeMap<String, String>) -> Result<Self> {
        let location = Location::parse(uri)?;
        if location.is_folder || location.glob.is_some() || location.path.filename().is_none() {
            let reason = "it names a folder or a pattern; expected the name of one object".into();
            return Err(Error::Uri { uri: location.text, reason });
        }
        let connection = Store::try_new(location.store.clone(), storage_options)?.connect()?;
        Ok(Self { connection, location })
    }

    /// Returns the object's name as people write it.
    pub fn url(&self) -> String {
        self.location.url()
    }

    /// Reads the object.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`], and those of the store.
    pub async fn read(&self) -> Result<Bytes> {
        let failed = |source| error(&self.url(), source);
        let options = Written::options(self.location.written.as_ref());
        let answer = self.connection.client.get_opts(&self.location.path, options).await.map_err(failed)?;
        answer.bytes().await.map_err(failed)
    }

    /// Writes the object atomically; replaces what is there.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn write(&self, bytes: Vec<u8>) -> Result<()> {
        let written = self.connection.client.put(&self.location.path, PutPayload::from(bytes)).await;
        written.map(drop).map_err(|source| error(&self.url(), source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::Io;

    #[test]
    fn an_object_comes_back_whole() {
        let folder = tempfile::tempdir().unwrap();
        let uri = folder.path().join("below/that").to_str().unwrap().to_owned();
        let object = WholeObject::connect(&uri, &BTreeMap::new()).unwrap();
        Io::current().unwrap().block_on(async {
            assert!(matches!(object.read().await, Err(Error::NotFound { url, .. }) if url == uri));
            object.write(b"first".to_vec()).await.unwrap();
            object.write(b"second".to_vec()).await.unwrap();
            assert_eq!(object.read().await.unwrap(), &b"second"[..]);
        });
        assert_eq!(std::fs::read_dir(folder.path().join("below")).unwrap().count(), 1);
    }

    #[test]
    fn what_names_no_object_is_refused() {
        for uri in ["s3://bucket/folder/", "s3://bucket", "/tmp/*.x", ""] {
            assert!(matches!(WholeObject::connect(uri, &BTreeMap::new()), Err(Error::Uri { .. })), "{uri}");
        }
    }
}
