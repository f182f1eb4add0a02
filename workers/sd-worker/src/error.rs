//! What can go wrong, by who is to mend it.

/// Why there is no picture.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request asks for what cannot be: the one who asked has to change it.
    #[error("{0}")]
    Request(String),
    /// The model's folder is incomplete, damaged or of a kind that is not supported.
    #[error("{0}")]
    Model(String),
    /// The callback said to stop.
    #[error("cancelled after step {step} of {total}")]
    Cancelled {
        /// Steps done.
        step: usize,
        /// Steps asked for.
        total: usize,
    },
    /// The device failed, or has no memory left.
    #[error(transparent)]
    Device(#[from] candle_core::Error),
}

/// A result with this crate's [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn request(message: impl Into<String>) -> Self {
        Self::Request(message.into())
    }

    pub(crate) fn model(message: impl Into<String>) -> Self {
        Self::Model(message.into())
    }
}
