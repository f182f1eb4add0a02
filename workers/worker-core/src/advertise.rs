//! Address under which other machines reach the worker.

use axum::http::Uri;
use axum::http::uri::Authority;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

/// Returns the address to report to the hive at `url`. It is the URL or address `given` by the operator, with the
/// bound port if it has none. Otherwise it is the bound address or, if the worker listens on all interfaces, the
/// local address of the route to the hive.
pub(crate) fn advertised(bound: SocketAddr, given: Option<&str>, url: &str) -> String {
    let port = bound.port();
    if let Some(given) = given {
        return match given.parse::<IpAddr>() {
            Ok(address) => SocketAddr::new(address, port).to_string(),
            Err(_) if given.contains("://") || has_port(given) => given.to_owned(),
            Err(_) => format!("{given}:{port}"),
        };
    }
    if !bound.ip().is_unspecified() {
        return bound.to_string();
    }
    match route_to(url, bound.is_ipv4()) {
        Ok(address) => SocketAddr::new(address, port).to_string(),
        Err(error) => {
            tracing::warn!(%error, "cannot determine this machine's address; set --advertise-address");
            bound.to_string()
        }
    }
}

/// Checks that `text` is an HTTP or HTTPS URL and returns it.
///
/// # Errors
/// The text is not a URL or has another scheme.
pub fn http_url(text: &str) -> Result<String, String> {
    let uri: Uri = text.parse().map_err(|error| format!("is not a valid URL: {error}"))?;
    match uri.scheme_str() {
        Some("http" | "https") => Ok(text.to_owned()),
        _ => Err("must begin with http:// or https://".to_owned()),
    }
}

/// Checks that `text` is a URL, a host, or a host with a port.
///
/// # Errors
/// Names the accepted forms.
pub(crate) fn address(text: &str) -> Result<String, String> {
    if text.contains("://") {
        return http_url(text);
    }
    let is_host = |authority: Authority| {
        let has_only_host = authority.host().len() == text.len();
        !authority.host().is_empty()
            && !text.contains('@')
            && (has_only_host || authority.port_u16().is_some())
    };
    match text.parse::<IpAddr>().is_ok() || text.parse().is_ok_and(is_host) {
        true => Ok(text.to_owned()),
        false => Err("must be HOST, HOST:PORT, or a URL such as https://gpu-3.example".to_owned()),
    }
}

fn has_port(address: &str) -> bool {
    address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok())
}

/// Returns the local address from which packets to a URL's host would be sent. No packet is sent.
fn route_to(url: &str, ipv4_only: bool) -> io::Result<IpAddr> {
    let uri: Uri = url.parse().map_err(io::Error::other)?;
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
    let mut failure =
        io::Error::new(io::ErrorKind::AddrNotAvailable, format!("{host} has no usable address"));
    for peer in (host, port).to_socket_addrs()?.filter(|peer| peer.is_ipv4() || !ipv4_only) {
        let any: IpAddr = match peer {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let local = UdpSocket::bind((any, 0)).and_then(|socket| {
            socket.connect(peer)?;
            socket.local_addr()
        });
        match local {
            Ok(local) => return Ok(local.ip()),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_all_interfaces_is_never_reported() {
        let hive = "http://127.0.0.1:9/beat";
        for (bound, given, expected) in [
            ("0.0.0.0:81", None, "127.0.0.1:81"),
            ("[::]:81", None, "127.0.0.1:81"),
            ("10.0.0.7:81", None, "10.0.0.7:81"),
            ("0.0.0.0:81", Some("gpu-3.example"), "gpu-3.example:81"),
            ("0.0.0.0:81", Some("gpu-3.example:443"), "gpu-3.example:443"),
            ("0.0.0.0:81", Some("https://fleet.example/gpu-3"), "https://fleet.example/gpu-3"),
            ("0.0.0.0:81", Some("192.0.2.1"), "192.0.2.1:81"),
            ("0.0.0.0:81", Some("2001:db8::1"), "[2001:db8::1]:81"),
            ("0.0.0.0:81", Some("[2001:db8::1]:443"), "[2001:db8::1]:443"),
        ] {
            assert_eq!(advertised(bound.parse().unwrap(), given, hive), expected, "{bound} {given:?}");
        }
    }

    #[test]
    fn malformed_addresses_are_refused() {
        for right in ["gpu-3", "gpu-3:80", "::1", "[::1]:80", "10.0.0.1", "http://gpu-3/a"] {
            assert_eq!(address(right).unwrap(), right);
        }
        for wrong in ["", "a b", "ftp://gpu-3", "gpu-3/a", "me@gpu-3", "gpu-3:x", "http://"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_host_without_address_is_an_error() {
        assert!(route_to("http://[::1]:9/", true).is_err());
    }
}
