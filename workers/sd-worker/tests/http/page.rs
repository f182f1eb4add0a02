//! The page as it is sent.
use crate::fixture::worker;

#[tokio::test]
async fn the_page_may_load_nothing_from_elsewhere() {
    let worker = worker();
    let page = worker.get("/").await;
    assert_eq!(page.status, 200);
    let header = |name: &str| page.headers[name].to_str().unwrap();
    let policy = header("content-security-policy");
    assert!(policy.starts_with("default-src 'none'; style-src 'sha256-"), "{policy}");
    assert!(policy.contains("connect-src 'self'") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(header("content-type"), "text/html; charset=utf-8");
    assert_eq!(header("x-content-type-options"), "nosniff");
    assert!(page.text.contains("<title>"));
}
