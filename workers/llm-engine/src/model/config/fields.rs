//! Fields of a config.json.
use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Fields of a config.json, with the defaults of its family.
pub struct Fields<'a> {
    config: &'a Value,
    defaults: Value,
}

impl<'a> Fields<'a> {
    /// Creates the fields of a config.json and the defaults, a JSON object.
    ///
    /// # Errors
    /// Returns an error if `defaults` is not JSON.
    pub fn new(config: &'a Value, defaults: &str) -> Result<Self> {
        Ok(Self { config, defaults: serde_json::from_str(defaults)? })
    }

    /// Returns a field or its default. Returns `None` for an explicit null.
    pub fn value(&self, key: &str) -> Option<&Value> {
        let value = self.config.get(key).or_else(|| self.defaults.get(key));
        value.filter(|value| !value.is_null())
    }

    /// Returns the default of a field.
    pub fn default_value(&self, key: &str) -> Option<&Value> {
        self.defaults.get(key)
    }

    /// Returns a non-negative integer; `None` if the field is missing.
    pub fn size(&self, key: &str) -> Result<Option<usize>> {
        let size = |value: &Value| value.as_u64().and_then(|size| usize::try_from(size).ok());
        let read =
            |value: &Value| size(value).with_context(|| format!("{key:?} is not a whole number: {value}"));
        self.value(key).map(read).transpose()
    }

    /// Returns a required integer of at least 1.
    pub fn required(&self, key: &str) -> Result<usize> {
        let size = self.size(key)?.with_context(|| format!("{key:?} is missing"))?;
        ensure!(size > 0, "{key:?} is 0, but must be at least 1");
        Ok(size)
    }

    /// Returns a number; `None` if the field is missing.
    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        let read =
            |value: &Value| value.as_f64().with_context(|| format!("{key:?} is not a number: {value}"));
        self.value(key).map(read).transpose()
    }

    /// Returns true if the field is `true`.
    pub fn flag(&self, key: &str) -> bool {
        self.value(key) == Some(&Value::Bool(true))
    }
}
