//! Client for POST requests with JSON, used for heartbeats and job callbacks.

use crate::auth::Token;
use std::time::Duration;

/// Error of a request that was not delivered.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct PostError {
    message: String,
    /// True if a retry may succeed: the server did not respond, or responded with 408, 429 or 5xx.
    pub is_temporary: bool,
}

/// Client that sends JSON to one URL.
#[derive(Clone, Debug)]
pub struct Poster {
    agent: ureq::Agent,
    url: String,
    authorization: Option<String>,
}

impl Poster {
    /// Creates a client. `token` is sent as a bearer token; `timeout` applies to each request.
    pub fn new(url: &str, token: Option<&Token>, timeout: Duration) -> Self {
        let agent = ureq::AgentBuilder::new().timeout(timeout).redirects(0).build();
        let authorization = token.map(|token| format!("Bearer {}", token.reveal()));
        Self { agent, url: url.to_owned(), authorization }
    }

    /// Sends `body`, which must be JSON.
    ///
    /// # Errors
    /// The server does not respond, or responds with a status other than 2xx.
    pub fn send(&self, body: &[u8]) -> Result<(), PostError> {
        let request = self.agent.post(&self.url).set("Content-Type", "application/json");
        let request = match &self.authorization {
            Some(authorization) => request.set("Authorization", authorization),
            None => request,
        };
        let (message, is_temporary) = match request.send_bytes(body) {
            Ok(response) if response.status() < 300 => return Ok(()),
            Ok(response) => (format!("server returned status {}", response.status()), false),
            Err(ureq::Error::Status(status, _)) => {
                (format!("server returned status {status}"), status >= 500 || status == 408 || status == 429)
            }
            Err(ureq::Error::Transport(error)) => (error.to_string(), true),
        };
        Err(PostError { message, is_temporary })
    }
}
