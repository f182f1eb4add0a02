//! Limits of the pictures of requests.

/// Limits of the pictures of requests.
#[derive(Clone, Debug)]
pub struct PictureOptions {
    /// Hosts from which pictures are fetched; otherwise requests contain them.
    pub hosts: Vec<String>,
    /// Maximum number of pictures of a request.
    pub count: usize,
}

impl Default for PictureOptions {
    fn default() -> Self {
        Self { hosts: Vec::new(), count: 16 }
    }
}
