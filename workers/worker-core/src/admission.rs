//! Admission control: per-client limits, and rejection of new work while the worker is not ready.

use crate::auth::TokenHash;
use crate::guarded::guard;
use crate::{ApiError, Lifecycle};
use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Monitoring routes. They are served in every state and count neither as requests of a client nor as work.
pub(crate) const PROBES: [&str; 3] = ["/health", "/ready", "/metrics"];

#[derive(Clone, Debug, Default)]
struct SlotCounts {
    /// Maximum per client; 0 disables the limit.
    limit: usize,
    in_use: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl SlotCounts {
    fn try_acquire(&self, client: IpAddr, count: usize) -> Option<WorkPermit> {
        let mut in_use = self.in_use.lock();
        let sum = in_use.get(&client).map_or(count, |before| before.saturating_add(count));
        if self.limit > 0 && sum > self.limit {
            return None;
        }
        in_use.insert(client, sum);
        Some(WorkPermit { counts: self.clone(), client, count })
    }
}

/// Slots held by a client. Dropping the value releases them.
#[derive(Debug)]
pub struct WorkPermit {
    counts: SlotCounts,
    client: IpAddr,
    count: usize,
}

impl Drop for WorkPermit {
    fn drop(&mut self) {
        let mut in_use = self.counts.in_use.lock();
        if let Some(sum) = in_use.get_mut(&self.client) {
            *sum -= self.count;
            if *sum == 0 {
                in_use.remove(&self.client);
            }
        }
    }
}

/// Sender of a request. Handlers extract it and acquire slots from it for the work they start.
///
/// A request is open until its response has been sent. The work it starts, such as several texts or a job, is
/// counted separately. A client at its limit may still follow or cancel its own work.
#[derive(Clone, Debug)]
pub struct Client {
    address: IpAddr,
    /// Token, if there are several.
    token: Option<TokenHash>,
    work: SlotCounts,
}

impl Client {
    /// Returns a number that identifies the client, for fair queues.
    pub fn id(&self) -> u128 {
        match self.address {
            IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
            IpAddr::V6(address) => address.to_bits(),
        }
    }

    /// Returns a number that differs between requests that must not share cached prompts: those with different tokens,
    /// and those with a different `salt`. The number is 0 if there is neither.
    pub fn cache_salt(&self, salt: Option<&str>) -> u128 {
        if self.token.is_none() && salt.is_none() {
            return 0;
        }
        let token = self.token.map_or([0; 32], |TokenHash(hash)| hash);
        let hash = Sha256::new().chain_update(token).chain_update(salt.unwrap_or_default()).finalize();
        hash.iter().take(16).fold(0, |number, byte| number << 8 | u128::from(*byte))
    }

    /// Acquires `count` slots, one per text or image; `param` is the request field that sets the count.
    ///
    /// # Errors
    /// 400 if `count` exceeds the limit itself, 429 if it exceeds the slots that are free now.
    pub fn acquire(&self, count: usize, param: &str) -> Result<WorkPermit, ApiError> {
        let limit = self.work.limit;
        if limit > 0 && count > limit {
            let message =
                format!("requests {count} outputs; the per-client limit is {limit} (--streams-per-client)");
            return Err(ApiError::field(param, message));
        }
        self.work.try_acquire(self.address, count).ok_or_else(|| {
            let message = format!(
                "per-client limit of {limit} running requests exceeded; wait for one to finish or raise --streams-per-client"
            );
            ApiError::too_many(message, Duration::from_secs(1))
        })
    }
}

impl<S: Sync> FromRequestParts<S> for Client {
    type Rejection = Infallible;

    /// Returns a client without limits if [`crate::App`] has not processed the request.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let unknown =
            || Client { address: Ipv6Addr::UNSPECIFIED.into(), token: None, work: SlotCounts::default() };
        Ok(parts.extensions.get().cloned().unwrap_or_else(unknown))
    }
}

/// Open requests and running work of each client.
#[derive(Clone)]
pub(crate) struct ClientLimits {
    proxies: Arc<[IpAddr]>,
    requests: SlotCounts,
    work: SlotCounts,
}

impl ClientLimits {
    pub fn new(limit: usize, proxies: &[IpAddr]) -> ClientLimits {
        let proxies = proxies.iter().map(|proxy| proxy.to_canonical()).collect();
        let slots = || SlotCounts { limit, ..SlotCounts::default() };
        ClientLimits { proxies, requests: slots(), work: slots() }
    }

    /// Returns the peer or, if it is a trusted proxy, the last address in `X-Forwarded-For` that is not one.
    fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = peer.to_canonical();
        // Proxies append on the right; entries further left may have been forged by the client.
        let lines: Vec<_> = headers.get_all("x-forwarded-for").iter().collect();
        let mut hops = lines.iter().rev().flat_map(|line| line.to_str().unwrap_or_default().rsplit(','));
        while self.proxies.contains(&client) {
            match hops.next().and_then(|hop| hop.trim().parse::<IpAddr>().ok()) {
                Some(hop) => client = hop.to_canonical(),
                None => break,
            }
        }
        match client {
            // A single subscriber usually owns a whole /64.
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (!0 << 64)).into(),
            address => address,
        }
    }
}

#[derive(Clone)]
pub(crate) struct Admission {
    pub lifecycle: Lifecycle,
    pub clients: ClientLimits,
    /// Maximum time until the response starts.
    pub timeout: Option<Duration>,
}

/// Middleware that admits a request, counts it while it runs, and ends it at the request or shutdown deadline.
pub(crate) async fn admit(State(admission): State<Admission>, mut request: Request, next: Next) -> Response {
    if PROBES.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let Admission { lifecycle, clients, timeout } = admission;
    let work = lifecycle.start_work();
    // Only POST starts work; other methods may still follow and cancel it while the worker drains.
    if request.method() == Method::POST
        && let Some((why, after)) = lifecycle.state().refusal()
    {
        return ApiError::unavailable(why, after).with_code("not_ready").into_response();
    }
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let peer = peer.map_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED), |ConnectInfo(peer)| peer.ip());
    let address = clients.client(peer, request.headers());
    let Some(slot) = clients.requests.try_acquire(address, 1) else {
        let message = format!("limit of {} open requests per client exceeded", clients.requests.limit);
        return ApiError::too_many(message, Duration::from_secs(1)).into_response();
    };
    let token = request.extensions().get::<TokenHash>().copied();
    request.extensions_mut().insert(Client { address, token, work: clients.work });
    let timed_out = async {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    let response = tokio::select! {
        biased;
        response = next.run(request) => response,
        () = timed_out => ApiError::timeout(format!(
            "no response within {} s (--request-timeout); request less output, or use streaming",
            timeout.unwrap_or_default().as_secs()
        )).into_response(),
        () = lifecycle.aborted() => worker_stopped_error().into_response(),
    };
    guard(response, (slot, work))
}

/// Returns the error for work that is still running when the worker stops.
pub(crate) fn worker_stopped_error() -> ApiError {
    ApiError::unavailable("the worker stopped before the request was completed", Duration::from_secs(10))
        .with_code("worker_ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[&'static str]) -> HeaderMap {
        lines.iter().map(|line| ("x-forwarded-for".parse().unwrap(), line.parse().unwrap())).collect()
    }

    #[test]
    fn slots_are_counted_per_client_and_released() {
        let clients = ClientLimits::new(3, &[]);
        let (one, two): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let first = clients.requests.try_acquire(one, 2).unwrap();
        let _second = clients.requests.try_acquire(one, 1).unwrap();
        assert!(clients.requests.try_acquire(one, 1).is_none());
        assert!(clients.requests.try_acquire(two, 3).is_some());
        drop(first);
        assert!(clients.requests.try_acquire(one, 3).is_none());
        assert!(clients.requests.try_acquire(one, 2).is_some());
        assert_eq!(clients.requests.in_use.lock().len(), 1, "clients without requests are removed");
    }

    #[test]
    fn zero_disables_the_limit() {
        let clients = ClientLimits::new(0, &[]);
        let slots: Vec<_> =
            (0..1000).map(|_| clients.requests.try_acquire([1, 2, 3, 4].into(), 9).unwrap()).collect();
        assert_eq!(slots.len(), 1000);
    }

    #[test]
    fn work_and_requests_are_counted_separately() {
        let clients = ClientLimits::new(2, &[]);
        let client = Client { address: [1, 2, 3, 4].into(), token: None, work: clients.work.clone() };
        let refused = |count| client.acquire(count, "n").unwrap_err();
        assert_eq!((refused(3).status().as_u16(), refused(3).param()), (400, Some("n")));
        let two = client.acquire(2, "n").unwrap();
        assert_eq!(refused(1).status().as_u16(), 429);
        assert!(clients.requests.try_acquire(client.address, 1).is_some(), "running work can be followed");
        drop(two);
        assert!(client.acquire(1, "n").is_ok());
    }

    #[test]
    fn cache_salts_differ_by_token_and_by_salt() {
        let work = SlotCounts::default();
        let of = |token: Option<u8>, salt| {
            let token = token.map(|byte| TokenHash([byte; 32]));
            Client { address: [1, 2, 3, 4].into(), token, work: work.clone() }.cache_salt(salt)
        };
        assert_eq!(of(None, None), 0);
        let salts = [of(Some(1), None), of(Some(2), None), of(None, Some("a")), of(Some(1), Some("a"))];
        let salts = [&salts[..], &[of(Some(1), Some("b")), of(None, None)]].concat();
        for (i, salt) in salts.iter().enumerate() {
            assert!(!salts[..i].contains(salt), "{salts:?}");
        }
        assert_eq!(of(Some(1), Some("a")), of(Some(1), Some("a")));
    }

    #[test]
    fn x_forwarded_for_is_read_from_trusted_proxies_only() {
        let proxies = ["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        let clients = ClientLimits::new(1, &proxies);
        let table: &[(&str, &[&'static str], &str)] = &[
            ("1.1.1.1", &["2.2.2.2"], "1.1.1.1"),
            ("10.0.0.1", &["2.2.2.2"], "2.2.2.2"),
            ("::ffff:10.0.0.1", &["2.2.2.2"], "2.2.2.2"),
            ("10.0.0.1", &["9.9.9.9, 2.2.2.2"], "2.2.2.2"),
            ("10.0.0.1", &["9.9.9.9", "2.2.2.2, 10.0.0.2"], "2.2.2.2"),
            ("10.0.0.1", &["2.2.2.2, nonsense"], "10.0.0.1"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("2001:db8:1:2:3:4:5:6", &[], "2001:db8:1:2::"),
        ];
        for &(peer, lines, client) in table {
            let found = clients.client(peer.parse().unwrap(), &headers(lines));
            assert_eq!(found, client.parse::<IpAddr>().unwrap(), "{peer} {lines:?}");
        }
    }
}
