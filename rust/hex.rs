//! Bytes as hexadecimal digits, as names and digests are written.

/// Returns two lower-case digits for each byte.
pub(crate) fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::hex;

    #[test]
    fn every_byte_has_two_digits() {
        assert_eq!(hex([0, 7, 0xab, 255]), "0007abff");
        assert_eq!(hex("ä"), "c3a4");
    }
}
