//! Checks the pages of listings: clients accept any XML as a page, and take missing elements as empty.
//!
//! A page that is another document, or does not say how to request the next one, would end the listing without the
//! remaining keys.

use object_store::client::HttpRequest;
use reqwest::Method;
use url::form_urlencoded;

use super::answer::{element, reason, shown};

/// A request for a page.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Listing {
    dialect: &'static Dialect,
    /// The token from the previous page, if there is one.
    token: Option<String>,
}

/// How a kind of store lists.
#[derive(Debug, PartialEq, Eq)]
struct Dialect {
    /// A parameter of the request's query.
    query: (&'static str, &'static str),
    token: &'static str,
    /// The root element of a page.
    root: &'static str,
    next_token: &'static str,
}

/// Amazon's, which Google also supports.
const S3: Dialect = Dialect {
    query: ("list-type", "2"),
    token: "continuation-token",
    root: "ListBucketResult",
    next_token: "NextContinuationToken",
};

const AZURE: Dialect =
    Dialect { query: ("comp", "list"), token: "marker", root: "EnumerationResults", next_token: "NextMarker" };

impl Listing {
    /// Returns which page is requested, if any.
    pub(super) fn of(request: &HttpRequest) -> Option<Self> {
        if request.method() != Method::GET {
            return None;
        }
        Self::of_query(request.uri().query()?)
    }

    fn of_query(query: &str) -> Option<Self> {
        let pairs = || form_urlencoded::parse(query.as_bytes());
        let dialect = [&S3, &AZURE].into_iter().find(|dialect| {
            let (name, value) = dialect.query;
            pairs().any(|pair| pair.0 == name && pair.1 == value)
        })?;
        let token = pairs().find(|(name, _)| name == dialect.token).map(|(_, token)| token.into_owned());
        Some(Self { dialect, token })
    }

    /// Checks a response; the error says what it is instead.
    pub(super) fn check(&self, body: &[u8]) -> Result<(), String> {
        let text = String::from_utf8_lossy(body);
        let root = root(&text).ok_or_else(|| format!("it sent {} bytes that are not a listing", body.len()))?;
        if root.rsplit(':').next() != Some(self.dialect.root) {
            return Err(format!("it sent `{root:.40}` instead of a listing{}", reason(shown(&text))));
        }
        let Some(open) = text.trim_end().strip_suffix(&format!("</{root}>")) else {
            return Err("it sent a listing without an end".into());
        };
        if open.trim_end().ends_with(&format!("<{root}>")) {
            return Err("it sent a listing that says nothing".into());
        }
        let next = element(&text, self.dialect.next_token);
        if next.is_none() && element(&text, "IsTruncated").is_some_and(|is| is.eq_ignore_ascii_case("true")) {
            return Err("it sent a part of a listing, and does not say how to ask for the next".into());
        }
        if next.is_some() && next == self.token.as_deref() {
            return Err("it sent a part of a listing that is followed by itself".into());
        }
        Ok(())
    }
}

/// Returns the name of a document's root element, after declarations and comments.
fn root(text: &str) -> Option<&str> {
    let mut rest = text.trim_start_matches('\u{feff}').trim_start();
    while rest.starts_with("<?") || rest.starts_with("<!") {
        rest = rest.split_once('>')?.1.trim_start();
    }
    let name = rest.strip_prefix('<')?;
    let end = name.find(|end: char| end.is_whitespace() || end == '>' || end == '/')?;
    Some(&name[..end]).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "list-type=2&prefix=d%2F";
    const SECOND: &str = "continuation-token=a%2Fb%3D&list-type=2&prefix=d%2F";

    fn page(of: &str) -> String {
        format!("<?xml version=\"1.0\"?>\n<ListBucketResult xmlns=\"http://s3\">{of}</ListBucketResult>\n")
    }

    fn checked(query: &str, body: &str) -> Result<(), String> {
        Listing::of_query(query).unwrap().check(body.as_bytes())
    }

    #[test]
    fn pages_are_what_they_say() {
        let more = "<IsTruncated>true</IsTruncated><NextContinuationToken>a/b=</NextContinuationToken>";
        for body in ["<IsTruncated>false</IsTruncated>", "<Name>b</Name>", more] {
            assert_eq!(checked(FIRST, &page(body)), Ok(()));
        }
        assert_eq!(checked(SECOND, &page("<IsTruncated>false</IsTruncated>")), Ok(()));
        let azure = "\u{feff}<?xml version=\"1.0\"?><EnumerationResults><Blobs/><NextMarker /></EnumerationResults>";
        assert_eq!(checked("restype=container&comp=list", azure), Ok(()));
        let again = azure.replace("<NextMarker />", "<NextMarker>m</NextMarker>");
        assert_eq!(checked("comp=list&marker=l", &again), Ok(()));
        assert!(checked("comp=list&marker=m", &again).unwrap_err().contains("followed by itself"));
        assert!(checked(SECOND, &page(more)).unwrap_err().contains("followed by itself"));
    }

    #[test]
    fn what_is_no_page_or_no_whole_one_is_told() {
        let error = "<Error><Code>InternalError</Code><Message>Again, please.</Message></Error>";
        for (body, said) in [
            (error, "it sent `Error` instead of a listing (InternalError: Again, please.)"),
            ("", "it sent 0 bytes that are not a listing"),
            ("{}", "it sent 2 bytes that are not a listing"),
            ("<?xml version=\"1.0\"?>", "bytes that are not a listing"),
            ("<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>true</IsTr", "a listing without an end"),
            ("<ListBucketResult/>", "a listing without an end"),
            ("<ListBucketResult>\n</ListBucketResult>", "a listing that says nothing"),
            (&page("<IsTruncated>true</IsTruncated>"), "does not say how to ask for the next"),
        ] {
            let told = checked(FIRST, body).unwrap_err();
            assert!(told.contains(said), "{told}");
        }
    }

    #[test]
    fn other_requests_are_for_no_page() {
        for query in ["uploads", "uploadId=1&partNumber=2", "comp=blocklist", "Action=AssumeRole"] {
            assert_eq!(Listing::of_query(query), None, "{query}");
        }
    }
}
