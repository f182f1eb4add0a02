//! Table of the sampler settings. Each row defines the field of [`Sampling`], its default and range, the
//! field of the API, the row in the documentation and the inputs of tests.
use std::ops::RangeInclusive;

/// Type of a setting, with its accessors and range.
#[derive(Clone, Debug)]
pub enum Kind {
    /// A floating-point number.
    Number {
        /// Allowed values.
        range: RangeInclusive<f32>,
        /// Returns the value.
        get: fn(&Sampling) -> f32,
        /// Sets the value.
        set: fn(&mut Sampling, f32),
    },
    /// A number of tokens, at least 1; `None` means all.
    Count {
        /// Returns the value.
        get: fn(&Sampling) -> Option<usize>,
        /// Sets the value.
        set: fn(&mut Sampling, Option<usize>),
    },
}

/// A sampler setting: a row of the table.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Name of the field, here and in the API.
    pub name: &'static str,
    /// Alternative name in the API.
    pub alias: Option<&'static str>,
    /// Effect, as shown in the documentation.
    pub doc: &'static str,
    /// Type, accessors and range.
    pub kind: Kind,
}

macro_rules! settings {
    (@type number) => { f32 };
    (@type count) => { Option<usize> };
    (@kind number, $name:ident, $range:expr) => {
        Kind::Number { range: $range, get: |from| from.$name, set: |to, value| to.$name = value }
    };
    (@kind count, $name:ident,) => {
        Kind::Count { get: |from| from.$name, set: |to, value| to.$name = value }
    };
    (@alias) => { None };
    (@alias $alias:literal) => { Some($alias) };
    ($(#[doc = $doc:literal] $kind:ident $name:ident $(($alias:literal))? = $default:expr $(, $range:expr)?;)*) => {
        /// Sampling parameters. The defaults are those of OpenAI's API.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Sampling {
            $(#[doc = $doc] pub $name: settings!(@type $kind),)*
            /// Seed of the random numbers, which makes the text reproducible; `None` uses a random seed.
            pub seed: Option<u64>,
            /// Tokens and the biases that are added to their logits.
            pub logit_bias: Vec<(u32, f32)>,
            /// Number of last tokens of prompt and text that the penalties consider; `None` considers all.
            pub penalty_window: Option<usize>,
        }

        impl Default for Sampling {
            fn default() -> Self {
                Self { $($name: $default,)* seed: None, logit_bias: Vec::new(), penalty_window: None }
            }
        }

        /// All sampler settings.
        pub const SETTINGS: &[Setting] = &[$(Setting {
            name: stringify!($name),
            alias: settings!(@alias $($alias)?),
            doc: $doc,
            kind: settings!(@kind $kind, $name, $($range)?),
        }),*];
    };
}

settings! {
    /// Divides the logits; 0 takes the most likely token.
    number temperature = 1.0, 0.0..=2.0;
    /// Keeps this many of the most likely tokens.
    count top_k = None;
    /// Keeps the most likely tokens until their probabilities sum to this; 1 keeps all.
    number top_p = 1.0, 0.0..=1.0;
    /// Keeps tokens at least this share as likely as the most likely one; 0 keeps all.
    number min_p = 0.0, 0.0..=1.0;
    /// Divides the logits of tokens of prompt and text if positive, and multiplies them otherwise; 1 changes nothing.
    number repetition_penalty("repeat_penalty") = 1.0, f32::MIN_POSITIVE..=100.0;
    /// Subtracted from the logit of each token that the text has.
    number presence_penalty = 0.0, -2.0..=2.0;
    /// Subtracted from the logit of each token, as often as the text has it.
    number frequency_penalty = 0.0, -2.0..=2.0;
}

/// Minimum and maximum of each bias in [`Sampling::logit_bias`].
pub const LOGIT_BIAS_RANGE: [f32; 2] = [-100.0, 100.0];

impl Setting {
    /// Returns the setting with this name or alias.
    pub fn named(name: &str) -> Option<&'static Setting> {
        SETTINGS.iter().find(|setting| setting.name == name || setting.alias == Some(name))
    }

    /// Describes the allowed values, as the end of a sentence after "must be".
    pub fn range(&self) -> String {
        match &self.kind {
            Kind::Number { range, .. } if *range.start() == f32::MIN_POSITIVE => {
                format!("above 0 and at most {}", range.end())
            }
            Kind::Number { range, .. } => format!("at least {} and at most {}", range.start(), range.end()),
            Kind::Count { .. } => "at least 1".to_owned(),
        }
    }

    /// Checks the setting's value in `sampling`.
    ///
    /// # Errors
    /// Returns a message with the value and the allowed values.
    pub fn check(&self, sampling: &Sampling) -> Result<(), String> {
        let refused = match &self.kind {
            // No range contains NaN.
            Kind::Number { range, get, .. } => {
                Some(get(sampling)).filter(|value| !range.contains(value)).map(|value| value.to_string())
            }
            Kind::Count { get, .. } => {
                get(sampling).filter(|count| *count == 0).map(|count| count.to_string())
            }
        };
        refused.map_or(Ok(()), |value| Err(format!("is {value}, but must be {}", self.range())))
    }

    /// Returns its row of a Markdown table: name, range, default, meaning.
    pub fn markdown_row(&self) -> String {
        let default = match &self.kind {
            Kind::Number { get, .. } => get(&Sampling::default()).to_string(),
            Kind::Count { .. } => "all".to_owned(),
        };
        let alias = self.alias.map(|alias| format!(", `{alias}`")).unwrap_or_default();
        format!("| `{}`{alias} | {} | {default} | {} |", self.name, self.range(), self.doc.trim())
    }
}
