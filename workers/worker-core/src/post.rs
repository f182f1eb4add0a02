//! JSON that is sent to another server by POST: heartbeats, and the ends of jobs.

use crate::auth::Token;
use std::time::Duration;

/// Why a server did not take what was sent.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct PostError {
    message: String,
    /// True if another try may succeed: the server did not answer, or answered 408, 429 or 5xx.
    pub is_temporary: bool,
}

/// Sends JSON to one URL.
#[derive(Clone, Debug)]
pub struct Poster {
    agent: ureq::Agent,
    url: String,
    authorization: Option<String>,
}

impl Poster {
    /// `token` is sent as a bearer's; `timeout` bounds the answer.
    pub fn new(url: &str, token: Option<&Token>, timeout: Duration) -> Self {
        let agent = ureq::AgentBuilder::new().timeout(timeout).redirects(0).build();
        let authorization = token.map(|token| format!("Bearer {}", token.reveal()));
        Self { agent, url: url.to_owned(), authorization }
    }

    /// Sends `body`, which is JSON.
    ///
    /// # Errors
    /// The server does not answer, or with another status than 2xx.
    pub fn send(&self, body: &[u8]) -> Result<(), PostError> {
        let request = self.agent.post(&self.url).set("Content-Type", "application/json");
        let request = match &self.authorization {
            Some(authorization) => request.set("Authorization", authorization),
            None => request,
        };
        let (message, is_temporary) = match request.send_bytes(body) {
            Ok(response) if response.status() < 300 => return Ok(()),
            Ok(response) => (format!("it answered {}", response.status()), false),
            Err(ureq::Error::Status(status, _)) => {
                (format!("it answered {status}"), status >= 500 || status == 408 || status == 429)
            }
            Err(ureq::Error::Transport(error)) => (error.to_string(), true),
        };
        Err(PostError { message, is_temporary })
    }
}
