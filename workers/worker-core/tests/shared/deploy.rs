//! Checks that the files in `deploy/` match a worker: its flags, defaults, paths and metrics.
use std::fs;
use std::path::Path;

use clap::Command;
use serde::Deserialize;
use serde_json::Value;

/// Folder for models in the image, and the user that the worker runs as.
const MODELS: &str = "/models";
const USER: u64 = 65534;

fn read(file: &str) -> String {
    let path = Path::new("../../deploy").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the documents of a YAML file.
fn documents(file: &str) -> Vec<Value> {
    let text = read(file);
    serde_yaml_ng::Deserializer::from_str(&text)
        .map(|document| Value::deserialize(document).unwrap())
        .collect()
}

/// Checks the manifest and the image of the worker `name`. `metrics` is the text of `/metrics` after a request.
pub fn check(name: &str, command: &Command, metrics: &str) {
    let port = command.get_arguments().find(|argument| argument.get_id() == "port").unwrap();
    let port: u64 = port.get_default_values()[0].to_str().unwrap().parse().unwrap();
    let documents = documents(&format!("kubernetes/{name}.yaml"));
    let of = |kind: &str| {
        let mut found = documents.iter().filter(|document| document["kind"] == kind);
        let document = found.next().unwrap_or_else(|| panic!("{name}: no {kind}"));
        assert!(document["metadata"]["name"].as_str().unwrap().starts_with(name) && found.next().is_none());
        &document["spec"]
    };
    let template = &of("Deployment")["template"];
    let (pod, container) = (&template["spec"], &template["spec"]["containers"][0]);
    assert_eq!(container["ports"][0]["containerPort"], port);
    assert_eq!(of("Service")["ports"][0]["port"], port);
    assert_eq!(template["metadata"]["annotations"]["prometheus.io/port"], port.to_string());
    for (probe, path) in
        [("startupProbe", "/ready"), ("readinessProbe", "/ready"), ("livenessProbe", "/health")]
    {
        assert_eq!(container[probe]["httpGet"]["path"], path, "{probe}");
    }
    assert_eq!(container["resources"]["limits"]["amd.com/gpu"], 1);

    let known: Vec<_> =
        command.get_arguments().filter_map(|flag| Some(flag.get_env()?.to_str()?.to_owned())).collect();
    let variables = container["env"].as_array().unwrap();
    for variable in variables.iter().map(|variable| variable["name"].as_str().unwrap()) {
        assert!(variable == "POD_IP" || known.iter().any(|known| known == variable), "{variable}");
    }
    let times = ["DRAIN_GRACE", "DRAIN_SECONDS", "SHUTDOWN_SECONDS"].map(|time| {
        let variable = variables.iter().find(|variable| variable["name"] == time).unwrap();
        variable["value"].as_str().unwrap().parse::<u64>().unwrap()
    });
    assert!(pod["terminationGracePeriodSeconds"].as_u64().unwrap() > times.iter().sum());

    let scaled = &of("HorizontalPodAutoscaler")["metrics"][0]["pods"]["metric"]["name"];
    assert!(has_metric(metrics, scaled.as_str().unwrap()), "{scaled}");
    assert_eq!(of("NetworkPolicy")["podSelector"], of("Deployment")["selector"]);
    check_image(pod, container, port);

    let prefix = name.split_once('-').unwrap().0;
    let dashboard: Value = serde_json::from_str(&read("kubernetes/grafana-dashboard.json")).unwrap();
    let mut checked = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let words = target["expr"].as_str().unwrap().split(|c: char| !c.is_ascii_lowercase() && c != '_');
            for word in
                words.filter(|word| word.starts_with(&format!("{prefix}_")) || word.starts_with("http_"))
            {
                assert!(has_metric(metrics, word), "{word} in\n{metrics}");
                checked += 1;
            }
        }
    }
    assert!(checked > 3);
}

fn has_metric(metrics: &str, name: &str) -> bool {
    let ends = |rest: &str| rest.starts_with(['{', ' ']);
    metrics.lines().any(|line| line.strip_prefix(name).is_some_and(ends))
}

/// Checks that the image exposes the port, and that its user can write to the volume.
fn check_image(pod: &Value, container: &Value, port: u64) {
    let image = read("Containerfile");
    let lines: Vec<&str> = image.lines().map(|line| line.trim().trim_start_matches("&& ")).collect();
    let exposed = lines.iter().find_map(|line| line.strip_prefix("EXPOSE ")).unwrap();
    assert!(exposed.split(' ').any(|exposed| exposed == port.to_string()), "{exposed}");
    for line in [
        format!("install -d -o {USER} -g {USER} {MODELS}"),
        format!("VOLUME {MODELS}"),
        format!("USER {USER}:{USER}"),
        format!("ENV HOST=0.0.0.0 HF_HOME={MODELS} HOME=/tmp"),
    ] {
        assert!(lines.contains(&line.as_str()), "{line}");
    }
    assert_eq!(
        (&pod["securityContext"]["runAsUser"], &pod["securityContext"]["fsGroup"]),
        (&USER.into(), &USER.into())
    );
    let mounts = container["volumeMounts"].as_array().unwrap().iter().map(|mount| &mount["mountPath"]);
    assert_eq!(mounts.collect::<Vec<_>>(), [MODELS, "/tmp"]);
    let ignored = read("../.dockerignore");
    assert!(["**/target", ".cache", ".git"].iter().all(|folder| ignored.lines().any(|line| line == *folder)));
    let resources = &documents("kubernetes/kustomization.yaml")[0]["resources"];
    resources
        .as_array()
        .unwrap()
        .iter()
        .for_each(|file| drop(read(&format!("kubernetes/{}", file.as_str().unwrap()))));
}
