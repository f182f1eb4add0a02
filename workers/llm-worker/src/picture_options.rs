//! Limits of the pictures of requests.

/// Limits of the pictures of requests.
#[derive(Clone, Debug)]
pub struct PictureOptions {
    /// Hosts from which pictures are fetched; otherwise requests contain them.
    pub hosts: Vec<ImageHost>,
    /// Maximum number of pictures of a request.
    pub count: usize,
}

impl Default for PictureOptions {
    fn default() -> Self {
        Self { hosts: Vec::new(), count: 16 }
    }
}

/// Host from which pictures may be fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageHost {
    /// Name or address; IPv6 addresses have brackets.
    name: String,
    /// Port; `None` allows all ports.
    port: Option<u16>,
}

impl ImageHost {
    /// Parses a host such as `example.org`, `example.org:8080` or `[::1]`.
    ///
    /// # Errors
    /// Returns an error for any other text, such as a URL.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, port) = name_and_port(text)
            .ok_or("must be a host without scheme, user name and path, such as example.org, example.org:8080 or [::1]")?;
        Ok(Self { name: name.to_owned(), port })
    }

    /// Returns true if pictures may be fetched from a host and port.
    pub fn allows(&self, name: &str, port: u16) -> bool {
        self.name.eq_ignore_ascii_case(name) && self.port.is_none_or(|own| own == port)
    }
}

/// Splits the text of a host into its name and port; `None` if it is not valid.
pub fn name_and_port(text: &str) -> Option<(&str, Option<u16>)> {
    let name_end =
        if text.starts_with('[') { text.find(']')? + 1 } else { text.find(':').unwrap_or(text.len()) };
    let (name, rest) = text.split_at(name_end);
    let port = match rest.strip_prefix(':') {
        Some(port) if port.bytes().all(|digit| digit.is_ascii_digit()) => Some(port.parse().ok()?),
        None if rest.is_empty() => None,
        _ => return None,
    };
    let is_in_name =
        |letter: char| letter.is_alphanumeric() || matches!(letter, '.' | '-' | '_' | '[' | ']' | ':');
    (!name.is_empty() && name.chars().all(is_in_name)).then_some((name, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_parsed() {
        for (text, name, port) in [
            ("example.org", "example.org", None),
            ("example.org:8080", "example.org", Some(8080)),
            ("127.0.0.1:1", "127.0.0.1", Some(1)),
            ("[::1]", "[::1]", None),
            ("[::1]:443", "[::1]", Some(443)),
        ] {
            assert_eq!(name_and_port(text), Some((name, port)), "{text}");
            let host = ImageHost::parse(text).unwrap();
            assert!(host.allows(&name.to_uppercase(), port.unwrap_or(7)));
            assert_eq!(host.allows(name, 8081), port.is_none());
        }
        for text in [
            "",
            ":80",
            "https://example.org",
            "example.org/",
            "a@example.org",
            "example.org:",
            "example.org:x",
            "example.org:65536",
            "example.org:+1",
            "::1",
            "[::1",
            "[::1]x",
            "a b",
            "a,b",
            "a?b",
            "a#b",
            "a\\b",
        ] {
            assert!(ImageHost::parse(text).is_err(), "{text}");
        }
    }
}
