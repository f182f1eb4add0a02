//! Protection of a worker without token from web pages in a browser on the same machine.
//!
//! A worker on the loopback interface is reachable from every web page that the machine's user visits. With DNS
//! rebinding, a page's own host name resolves to 127.0.0.1, so that the browser regards the worker as the page's server.
//! The `Host` header then contains the page's name. Requests from pages of other origins have an `Origin` header.

use crate::{ApiError, ServerArguments};
use axum::extract::{Request, State};
use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use std::net::IpAddr;
use std::sync::Arc;

/// Paths that reveal nothing, and that monitoring may request under any name.
const UNCHECKED: [&str; 2] = ["/health", "/ready"];
/// Maximum number of characters of a header in an error.
const MAX_ECHOED_CHARS: usize = 100;

/// Hosts and origins whose requests are accepted.
#[derive(Clone, Debug)]
pub(crate) struct OriginPolicy {
    address: IpAddr,
    hosts: Arc<[String]>,
    origins: Arc<[HeaderValue]>,
}

impl OriginPolicy {
    /// Returns the policy of a worker that is reachable only from this machine, and without a token.
    pub fn of(arguments: &ServerArguments) -> Option<Self> {
        let address = arguments.host.to_canonical();
        let any_host = arguments.allowed_host.iter().any(|host| host == "*");
        let is_needed = address.is_loopback() && arguments.api_token.is_empty() && !any_host;
        let (hosts, origins) = (&arguments.allowed_host, &arguments.cors_origin);
        is_needed.then(|| Self {
            address,
            hosts: hosts.as_slice().into(),
            origins: origins.as_slice().into(),
        })
    }

    fn check(&self, authority: Option<&Authority>, headers: &HeaderMap) -> Result<(), ApiError> {
        for host in headers.get_all(HOST) {
            if !host.to_str().ok().and_then(|host| host.parse().ok()).is_some_and(|host| self.knows(&host)) {
                return Err(forbidden_host(host.as_bytes()));
            }
        }
        if let Some(authority) = authority.filter(|authority| !self.knows(authority)) {
            return Err(forbidden_host(authority.as_str().as_bytes()));
        }
        for origin in headers.get_all(ORIGIN) {
            if !self.allows(origin, headers.get(HOST)) {
                return Err(forbidden_origin(origin));
            }
        }
        Ok(())
    }

    /// Returns true for the loopback addresses, the bound address, localhost, and the names given by a flag.
    fn knows(&self, authority: &Authority) -> bool {
        let host = authority.host().trim_end_matches('.');
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        match bare.parse::<IpAddr>() {
            Ok(address) if address.is_loopback() || address.to_canonical() == self.address => true,
            _ => {
                let names = self.hosts.iter().map(String::as_str);
                names.chain(["localhost"]).any(|name| name.eq_ignore_ascii_case(bare))
            }
        }
    }

    /// Returns true for the origin of the worker's own page, and for those given by a flag.
    fn allows(&self, origin: &HeaderValue, host: Option<&HeaderValue>) -> bool {
        let of_page = origin.as_bytes();
        let of_page = of_page.strip_prefix(b"http://").or_else(|| of_page.strip_prefix(b"https://"));
        let is_own =
            |host: &HeaderValue| of_page.is_some_and(|page| page.eq_ignore_ascii_case(host.as_bytes()));
        host.is_some_and(is_own) || self.origins.iter().any(|allowed| allowed == origin || allowed == "*")
    }
}

/// Middleware that rejects requests of foreign web pages.
pub(crate) async fn check_origin(
    State(policy): State<OriginPolicy>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if !UNCHECKED.contains(&request.uri().path()) {
        policy.check(request.uri().authority(), request.headers())?;
    }
    Ok(next.run(request).await)
}

fn forbidden_host(host: &[u8]) -> ApiError {
    let message = format!(
        "host {:?} is not a name of this worker, which runs without a token; use localhost, or start the worker with \
         --allowed-host NAME or --api-token",
        echoed(host)
    );
    ApiError::new(StatusCode::FORBIDDEN, "forbidden_host", message)
}

fn forbidden_origin(origin: &HeaderValue) -> ApiError {
    let message = format!(
        "web pages of origin {:?} may not call this worker, which runs without a token; start the worker with \
         --cors-origin ORIGIN",
        echoed(origin.as_bytes())
    );
    ApiError::new(StatusCode::FORBIDDEN, "forbidden_origin", message)
}

fn echoed(header: &[u8]) -> String {
    String::from_utf8_lossy(header).chars().take(MAX_ECHOED_CHARS).collect()
}
