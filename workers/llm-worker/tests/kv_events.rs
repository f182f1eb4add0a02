//! Events of the prefix cache, as routers receive them.
use std::net::TcpListener;
use std::time::Duration;

use llm_engine::engine::{CacheEvent, CacheEventSink};
use llm_worker::kv_events::{Bound, Options, start};
use rmpv::Value;
use tokio::time::timeout;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

const FREE: &str = "@tcp://127.0.0.1:0";

fn options(events: &str, replay: Option<&str>) -> Options {
    let replay = replay.map(|replay| replay.parse().unwrap());
    Options { events: events.parse().unwrap(), replay, topic: "kv@10.0.0.7@tiny".into() }
}

fn stored() -> CacheEvent {
    CacheEvent::Stored { hashes: vec![u64::MAX, 7], parent: Some(3), tokens: (0..32).collect() }
}

/// Publishes batches until the router receives one, because those before its subscription are lost.
async fn first_received(sink: &mut CacheEventSink, router: &mut SubSocket) -> ZmqMessage {
    loop {
        sink(vec![stored()]);
        if let Ok(message) = timeout(Duration::from_millis(10), router.recv()).await {
            return message.unwrap();
        }
    }
}

fn number(message: &ZmqMessage) -> u64 {
    u64::from_be_bytes(message.get(message.len() - 2).unwrap()[..].try_into().unwrap())
}

fn batch(message: &ZmqMessage) -> Value {
    rmpv::decode::read_value(&mut &message.get(message.len() - 1).unwrap()[..]).unwrap()
}

#[tokio::test]
async fn routers_receive_events_in_the_format_of_vllm() {
    let (mut sink, bound) = start(options(FREE, None)).unwrap();
    let mut router = SubSocket::new();
    router.connect(&bound.events.unwrap()).await.unwrap();
    router.subscribe("kv@").await.unwrap();
    let first = first_received(&mut sink, &mut router).await;
    assert_eq!((first.len(), &first.get(0).unwrap()[..]), (3, &b"kv@10.0.0.7@tiny"[..]));
    let batch_of = batch(&first);
    let [time, events, rank] = &batch_of.as_array().unwrap()[..] else { panic!("{batch_of}") };
    assert!(time.as_f64().unwrap() > 1.7e9 && rank.as_u64() == Some(0));
    let tokens: Vec<String> = (0..32).map(|token| token.to_string()).collect();
    let expected = format!("[[\"BlockStored\", [{}, 7], 3, [{}], 16, nil]]", u64::MAX, tokens.join(", "));
    assert_eq!(events.to_string(), expected);

    sink(vec![CacheEvent::Removed { hashes: vec![7, 8] }, CacheEvent::Cleared]);
    let mut last = number(&first);
    loop {
        let message = router.recv().await.unwrap();
        last += 1;
        assert_eq!(number(&message), last);
        let events = batch(&message)[1].to_string();
        if !events.contains("BlockStored") {
            assert_eq!(events, "[[\"BlockRemoved\", [7, 8]], [\"AllBlocksCleared\"]]");
            break;
        }
    }
}

#[tokio::test]
async fn routers_can_request_the_events_from_a_number_on() {
    let (mut sink, Bound { events, replay }) = start(options(FREE, Some(FREE))).unwrap();
    let mut router = SubSocket::new();
    router.connect(&events.unwrap()).await.unwrap();
    router.subscribe("").await.unwrap();
    let last = number(&first_received(&mut sink, &mut router).await);

    let mut asking = DealerSocket::new();
    asking.connect(&replay.unwrap()).await.unwrap();
    let ask = |number: &[u8]| {
        let mut request = ZmqMessage::from(Vec::new());
        request.push_back(number.to_vec().into());
        request
    };
    // Malformed requests are ignored.
    asking.send(ask(b"first")).await.unwrap();
    asking.send(ZmqMessage::from("0")).await.unwrap();
    for from in [0, last] {
        asking.send(ask(&from.to_be_bytes())).await.unwrap();
        for expected in from..=last {
            let message = asking.recv().await.unwrap();
            assert_eq!((message.len(), number(&message)), (3, expected));
            assert_eq!(batch(&message)[1][0][0].as_str(), Some("BlockStored"));
        }
        // Further batches may have been sent since.
        while number(&asking.recv().await.unwrap()) != u64::MAX {}
    }
}

#[tokio::test]
async fn a_router_may_start_late_go_away_and_return() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let endpoint = format!("tcp://{free}");
    let (mut sink, bound) = start(options(&endpoint, None)).unwrap();
    assert_eq!(bound, Bound::default());
    sink(vec![CacheEvent::Cleared]);
    let mut last = None;
    for _ in 0..2 {
        let mut router = SubSocket::new();
        router.subscribe("").await.unwrap();
        router.bind(&endpoint).await.unwrap();
        let received = Some(number(&first_received(&mut sink, &mut router).await));
        assert!(received > last, "{received:?} {last:?}");
        last = received;
        assert!(router.close().await.is_empty());
    }
}

#[test]
fn a_port_that_is_taken_is_reported() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("@tcp://{}", taken.local_addr().unwrap());
    for (options, flag) in [
        (options(&endpoint, None), "--kv-events tcp"),
        (options(FREE, Some(&endpoint)), "--kv-events-replay tcp"),
    ] {
        let error = format!("{:#}", start(options).err().unwrap());
        assert!(error.contains(flag) && error.contains(&endpoint[1..]), "{error}");
        assert!(error.to_lowercase().contains("in use"), "{error}");
    }
}
