//! Questions, guesses and the GPU's answers.
use std::fmt;

use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Verdict {
    Right,
    Wrong,
    /// A measurement without a guess, such as a cost or a rate.
    Measured,
    /// The question does not apply to this GPU.
    NotApplicable,
}

/// Question about the behaviour of the GPU.
#[derive(Clone, Copy, Deserialize)]
pub struct Question {
    pub name: &'static str,
    /// Description of the guess.
    pub guess: &'static str,
    /// Code or results that depend on the guess.
    pub why: &'static str,
    /// Source files that implement the guess.
    pub place: &'static str,
}

pub struct Answer {
    pub question: Question,
    pub verdict: Verdict,
    /// Description of the answer.
    pub text: String,
    /// Differing cases, or measurements.
    pub details: Value,
}

impl Question {
    pub fn answer(self, right: bool, text: impl Into<String>) -> Answer {
        let verdict = if right { Verdict::Right } else { Verdict::Wrong };
        Answer { question: self, verdict, text: text.into(), details: Value::Null }
    }

    pub fn measured(self, text: impl Into<String>, details: Value) -> Answer {
        Answer { question: self, verdict: Verdict::Measured, text: text.into(), details }
    }

    pub fn not_applicable(self, why: impl Into<String>) -> Answer {
        Answer { question: self, verdict: Verdict::NotApplicable, text: why.into(), details: Value::Null }
    }
}

impl Answer {
    pub fn with(self, details: Value) -> Self {
        Self { details, ..self }
    }

    pub fn json(&self) -> Value {
        json!({
            "question": self.question.name,
            "guess": self.question.guess,
            "answer": self.text,
            "verdict": self.verdict.to_string(),
            "details": self.details,
            "why": self.question.why,
            "place": self.question.place,
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Right => "right",
            Self::Wrong => "wrong",
            Self::Measured => "measured",
            Self::NotApplicable => "not applicable",
        })
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.verdict, self.question.name, self.text)?;
        if self.verdict == Verdict::Wrong {
            write!(f, " (guess: {}; {})", self.question.guess, self.question.place)?;
        }
        Ok(())
    }
}
