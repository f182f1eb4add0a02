//! What may begin: not too much for one client, and no work when the worker is not ready.

use crate::guarded::guard;
use crate::{ApiError, Lifecycle};
use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Routes of machines that watch: they are answered in every state, need no place, and are no work.
const PROBES: [&str; 3] = ["/health", "/ready", "/metrics"];

/// How many places each client has taken.
#[derive(Clone, Debug, Default)]
struct Places {
    /// 0 sets no limit.
    limit: usize,
    taken: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Places {
    fn take(&self, client: IpAddr, count: usize) -> Option<Place> {
        let mut taken = self.taken.lock();
        let sum = taken.get(&client).map_or(count, |before| before.saturating_add(count));
        if self.limit > 0 && sum > self.limit {
            return None;
        }
        taken.insert(client, sum);
        Some(Place { places: self.clone(), client, count })
    }
}

/// Places of a client, until dropped.
#[derive(Debug)]
pub struct Place {
    places: Places,
    client: IpAddr,
    count: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        if let Some(sum) = taken.get_mut(&self.client) {
            *sum -= self.count;
            if *sum == 0 {
                taken.remove(&self.client);
            }
        }
    }
}

/// Who sends a request: handlers take it as an argument, and from it the places of the work that they begin.
///
/// A request is open until its answer has ended; what it asks for may be several texts, or a job that goes on without it.
/// Both are counted, each for itself. A client at its limit may still follow or cancel its own work.
#[derive(Clone, Debug)]
pub struct Client {
    address: IpAddr,
    work: Places,
}

impl Client {
    /// Places for so many texts or pictures at once; `param` is the field that asks for so many.
    ///
    /// # Errors
    /// 400 for more than one client may ever have, 429 where too many of his run.
    pub fn begin(&self, count: usize, param: &str) -> Result<Place, ApiError> {
        let limit = self.work.limit;
        if limit > 0 && count > limit {
            let message =
                format!("asks for {count} at once; the per-client limit is {limit} (--streams-per-client)");
            return Err(ApiError::field(param, message));
        }
        self.work.take(self.address, count).ok_or_else(|| {
            let message = format!(
                "per-client limit of {limit} running requests exceeded; wait for one to finish or raise --streams-per-client"
            );
            ApiError::too_many(message, Duration::from_secs(1))
        })
    }
}

impl<S: Sync> FromRequestParts<S> for Client {
    type Rejection = Infallible;

    /// Without [`crate::App`] around, nothing is limited.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let unknown = || Client { address: Ipv6Addr::UNSPECIFIED.into(), work: Places::default() };
        Ok(parts.extensions.get().cloned().unwrap_or_else(unknown))
    }
}

/// What each client has: open requests, and work.
#[derive(Clone)]
pub(crate) struct Clients {
    proxies: Arc<[IpAddr]>,
    open: Places,
    work: Places,
}

impl Clients {
    pub fn new(limit: usize, proxies: &[IpAddr]) -> Clients {
        let proxies = proxies.iter().map(|proxy| proxy.to_canonical()).collect();
        let places = || Places { limit, ..Places::default() };
        Clients { proxies, open: places(), work: places() }
    }

    /// The client: the peer, or whom the last proxy that is trusted had as its peer.
    fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = peer.to_canonical();
        // What the client itself wrote stands left of what the proxies added.
        let lines: Vec<_> = headers.get_all("x-forwarded-for").iter().collect();
        let mut hops = lines.iter().rev().flat_map(|line| line.to_str().unwrap_or_default().rsplit(','));
        while self.proxies.contains(&client) {
            match hops.next().and_then(|hop| hop.trim().parse::<IpAddr>().ok()) {
                Some(hop) => client = hop.to_canonical(),
                None => break,
            }
        }
        match client {
            // One household has 2^64 of them.
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (!0 << 64)).into(),
            address => address,
        }
    }
}

#[derive(Clone)]
pub(crate) struct Admission {
    pub lifecycle: Lifecycle,
    pub clients: Clients,
    /// How long an answer may take to begin.
    pub timeout: Option<Duration>,
}

/// Lets a request in, counts it while it runs, and ends it at the deadline of either.
pub(crate) async fn admit(State(admission): State<Admission>, mut request: Request, next: Next) -> Response {
    if PROBES.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let Admission { lifecycle, clients, timeout } = admission;
    let work = lifecycle.work();
    // Readers may follow what runs, and stop it, to the last; only POST asks for more.
    if request.method() == Method::POST
        && let Some((why, after)) = lifecycle.state().refusal()
    {
        return ApiError::unavailable(why, after).with_code("not_ready").into_response();
    }
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let peer = peer.map_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED), |ConnectInfo(peer)| peer.ip());
    let address = clients.client(peer, request.headers());
    let Some(place) = clients.open.take(address, 1) else {
        let message = format!("per-client limit of {} open requests exceeded", clients.open.limit);
        return ApiError::too_many(message, Duration::from_secs(1)).into_response();
    };
    request.extensions_mut().insert(Client { address, work: clients.work });
    let late = async {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    let response = tokio::select! {
        biased;
        response = next.run(request) => response,
        () = late => ApiError::timeout(format!(
            "no answer within {} s (--request-timeout): ask for less, or for a stream",
            timeout.unwrap_or_default().as_secs()
        )).into_response(),
        () = lifecycle.cut_off() => cut_error().into_response(),
    };
    guard(response, (place, work))
}

/// What running work is told when the worker ends before it.
pub(crate) fn cut_error() -> ApiError {
    ApiError::unavailable("the worker stopped before this was done", Duration::from_secs(10))
        .with_code("worker_ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[&'static str]) -> HeaderMap {
        lines.iter().map(|line| ("x-forwarded-for".parse().unwrap(), line.parse().unwrap())).collect()
    }

    #[test]
    fn places_are_counted_by_client_and_given_back() {
        let clients = Clients::new(3, &[]);
        let (one, two): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let first = clients.open.take(one, 2).unwrap();
        let _second = clients.open.take(one, 1).unwrap();
        assert!(clients.open.take(one, 1).is_none());
        assert!(clients.open.take(two, 3).is_some());
        drop(first);
        assert!(clients.open.take(one, 3).is_none());
        assert!(clients.open.take(one, 2).is_some());
        assert_eq!(clients.open.taken.lock().len(), 1, "clients without requests are forgotten");
    }

    #[test]
    fn none_is_unlimited() {
        let clients = Clients::new(0, &[]);
        let places: Vec<_> = (0..1000).map(|_| clients.open.take([1, 2, 3, 4].into(), 9).unwrap()).collect();
        assert_eq!(places.len(), 1000);
    }

    #[test]
    fn work_is_counted_beside_requests() {
        let clients = Clients::new(2, &[]);
        let client = Client { address: [1, 2, 3, 4].into(), work: clients.work.clone() };
        let refused = |count| client.begin(count, "n").unwrap_err();
        assert_eq!((refused(3).status().as_u16(), refused(3).param()), (400, Some("n")));
        let two = client.begin(2, "n").unwrap();
        assert_eq!(refused(1).status().as_u16(), 429);
        assert!(clients.open.take(client.address, 1).is_some(), "what runs can be followed");
        drop(two);
        assert!(client.begin(1, "n").is_ok());
    }

    #[test]
    fn only_trusted_proxies_are_believed() {
        let proxies = ["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        let clients = Clients::new(1, &proxies);
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
