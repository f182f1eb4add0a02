//! Errors of image generation, classified by cause.

/// Errors of image generation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is invalid.
    #[error("{0}")]
    Request(String),
    /// The model is incomplete, damaged or not supported.
    #[error("{0}")]
    Model(String),
    /// The step callback requested cancellation.
    #[error("cancelled after step {step} of {total}")]
    Cancelled {
        /// Number of completed steps.
        step: usize,
        /// Number of requested steps.
        total: usize,
    },
    /// The device failed or is out of memory.
    #[error(transparent)]
    Device(#[from] candle_core::Error),
}

/// Result with the [`enum@Error`] of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Callback that runs between parts of a computation, for example to detect cancellation. An error that it returns
/// ends the computation.
pub type Check<'a> = &'a dyn Fn() -> Result<()>;

impl Error {
    pub(crate) fn request(message: impl Into<String>) -> Self {
        Self::Request(message.into())
    }

    pub(crate) fn model(message: impl Into<String>) -> Self {
        Self::Model(message.into())
    }
}
