//! State of a model that can be unloaded.

/// State of a model's weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelState {
    /// The weights are in the memory of the device.
    #[default]
    Loaded,
    /// The model was not needed, and its memory is free.
    Unloaded,
    /// A request waits until the model is loaded.
    Loading,
}

impl ModelState {
    /// Returns the name of the state in llama.cpp.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loaded => "loaded",
            Self::Unloaded => "unloaded",
            Self::Loading => "loading",
        }
    }
}
