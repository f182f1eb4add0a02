//! A client of a worker that runs as a process.
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command};

/// Headers of every request.
pub const END: &str = "Host: localhost\r\nConnection: close\r\n";

/// Sends a request, and returns the answer.
pub fn answer(address: &str, request: &str) -> String {
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    answer
}

/// Starts a worker, and returns it with its address once it is ready.
pub fn start(worker: &mut Command) -> (Child, String) {
    let mut running = worker.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(running.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().rsplit("http://").next().unwrap().to_owned();
    while !answer(&address, &format!("GET /ready HTTP/1.1\r\n{END}\r\n")).starts_with("HTTP/1.1 200") {
        assert_eq!(running.try_wait().unwrap(), None);
    }
    (running, address)
}
