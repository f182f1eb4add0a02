//! What may begin: not too much for one client, and no work when the worker is not ready.

use crate::guarded::guard;
use crate::routes::PROBES;
use crate::{ApiError, Lifecycle};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// How many requests each client has open.
#[derive(Clone)]
pub(crate) struct Clients {
    /// 0 sets no limit.
    limit: usize,
    proxies: Arc<[IpAddr]>,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// One open request of a client, until dropped.
pub(crate) struct Place {
    clients: Clients,
    address: IpAddr,
}

impl Clients {
    pub fn new(limit: usize, proxies: &[IpAddr]) -> Clients {
        let proxies = proxies.iter().map(|proxy| proxy.to_canonical()).collect();
        Clients { limit, proxies, open: Arc::default() }
    }

    fn enter(&self, address: IpAddr) -> Option<Place> {
        let mut open = self.open.lock();
        let count = open.entry(address).or_insert(0);
        if self.limit > 0 && *count >= self.limit {
            return None;
        }
        *count += 1;
        Some(Place { clients: self.clone(), address })
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

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.clients.open.lock();
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.address);
            }
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
pub(crate) async fn admit(State(admission): State<Admission>, request: Request, next: Next) -> Response {
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
    let Some(place) = clients.enter(clients.client(peer, request.headers())) else {
        let message = format!("{} requests of this client are open already", clients.limit);
        return ApiError::too_many(message, Duration::from_secs(1)).into_response();
    };
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
    ApiError::unavailable("the worker ended before this was done", Duration::from_secs(10))
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
        let clients = Clients::new(2, &[]);
        let (one, two): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let first = clients.enter(one).unwrap();
        let _second = clients.enter(one).unwrap();
        assert!(clients.enter(one).is_none());
        assert!(clients.enter(two).is_some());
        drop(first);
        assert!(clients.enter(one).is_some());
        assert_eq!(clients.open.lock().len(), 1, "clients without requests are forgotten");
    }

    #[test]
    fn none_is_unlimited() {
        let clients = Clients::new(0, &[]);
        let places: Vec<_> = (0..1000).map(|_| clients.enter([1, 2, 3, 4].into()).unwrap()).collect();
        assert_eq!(places.len(), 1000);
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
