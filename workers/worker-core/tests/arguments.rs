//! Parsing of the command line.

use clap::{CommandFactory, FromArgMatches, Parser};
use worker_core::ServerArguments;
use worker_core::arguments::command;

#[derive(Parser)]
struct TestArguments {
    #[command(flatten)]
    server: ServerArguments,
}

fn parse(more: &[&str]) -> Result<ServerArguments, String> {
    let all = std::iter::once("worker").chain(more.iter().copied());
    TestArguments::try_parse_from(all).map(|arguments| arguments.server).map_err(|error| error.to_string())
}

#[test]
fn each_flag_has_an_environment_variable() {
    let command = TestArguments::command();
    let flags: Vec<_> = command.get_arguments().filter(|flag| flag.get_id() != "help").collect();
    assert!(flags.len() >= 16);
    for flag in flags {
        let name = flag.get_long().unwrap().replace('-', "_").to_uppercase();
        assert_eq!(flag.get_env().and_then(|name| name.to_str()), Some(name.as_str()));
    }
}

#[test]
fn the_token_is_redacted() {
    let arguments = parse(&["--api-token=hunter2"]).unwrap();
    assert!(!format!("{arguments:?}").contains("hunter2"));
    assert!(arguments.api_token[0].matches(b"hunter2"));
    assert!(
        TestArguments::command()
            .get_arguments()
            .any(|flag| flag.get_id() == "api_token" && flag.is_hide_env_values_set())
    );
}

#[test]
fn lists_are_separated_by_commas() {
    let arguments = parse(&["--cors-origin=http://a,http://b", "--trusted-proxy=10.0.0.1,::1"]).unwrap();
    assert_eq!((arguments.cors_origin.len(), arguments.trusted_proxy.len()), (2, 2));
    let arguments = parse(&["--api-token=a,b", "--allowed-host=x.test,y.test"]).unwrap();
    assert_eq!((arguments.api_token.len(), arguments.allowed_host.len()), (2, 2));
}

#[test]
fn invalid_values_are_rejected() {
    let wrong = [
        "--host=nowhere",
        "--port=65536",
        "--hive-url=ftp://x",
        "--hive-url=x y",
        "--hive-url=",
        "--api-token=",
        "--api-token=a,,b",
        "--max-connections=0",
        "--write-timeout=x",
        "--cors-origin=\u{7f}",
        "--body-limit=-1",
        "--header-limit=10",
        "--header-timeout=0",
        "--request-timeout=18446744073709551615",
        "--drain-seconds=x",
        "--drain-grace=x",
        "--advertise=a b",
        "--worker-id=",
        "--worker-id=a/b",
        "--trusted-proxy=x",
    ];
    for flag in wrong {
        assert!(parse(&[flag]).is_err(), "{flag}");
    }
    for right in [
        "--request-timeout=0",
        "--drain-seconds=0",
        "--shutdown-seconds=0",
        "--streams-per-client=0",
        "--write-timeout=0",
        "--host=::1",
    ] {
        assert!(parse(&[right]).is_ok(), "{right}");
    }
}

#[test]
fn the_worker_id_is_random_unless_given() {
    let id = parse(&[]).unwrap().worker_id;
    assert!(id.len() == "worker-".len() + 8 && id.starts_with("worker-"), "{id}");
    assert_eq!(parse(&["--worker-id=mine"]).unwrap().worker_id, "mine");
}

#[test]
fn defaults_can_be_overridden() {
    let parse = |more: &[&str]| {
        let command = command::<TestArguments>(&[("port", "9000"), ("body_limit", "5")]);
        let matches = command.get_matches_from(["worker"].iter().chain(more));
        let server = TestArguments::from_arg_matches(&matches).unwrap().server;
        (server.port, server.body_limit, server.streams_per_client)
    };
    assert_eq!(parse(&[]), (9000, 5, 32));
    assert_eq!(parse(&["--port=1"]), (1, 5, 32));
}
