//! Removes private data from texts: names of users and hosts, folders, addresses, serial numbers.
use std::path::Path;

use regex::Regex;
use serde_json::Value;

/// Words that are kept even if they are the name of a user or host, since they occur in every log.
const COMMON: [&str; 12] = [
    "root",
    "user",
    "test",
    "tests",
    "gpu",
    "rocm",
    "candle",
    "build",
    "runner",
    "localhost",
    "debian",
    "ubuntu",
];

/// Patterns and their replacements.
const PATTERNS: [(&str, &str); 9] = [
    // Values after labels such as "serial number:".
    (
        r"(?i)\b((?:[a-z0-9_ ]*serial(?: ?n(?:umber|r|o)\.?)?|unique[ _-]?id|asset[ _-]?tag|machine[ _-]?id|hostname|user(?:name)?|logname)[\x22']?[ \t]*[:=][ \t]*)[\x22']?[^\s,;\x22']+[\x22']?",
        "$1<removed>",
    ),
    (r"(?i)\b(?:GPU-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "<id>"),
    (r"(?i)\bGPU-[0-9a-f]{8,}\b", "<id>"),
    (r"(?i)\b(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b", "<bus>"),
    (r"(?i)\b(?:[0-9a-f]{4}|[0-9a-f]{8}):[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?\b", "<bus>"),
    (r"(?i)\b(?:[0-9a-f]{2}[:-]){5}[0-9a-f]{2}\b", "<mac>"),
    (r"\b(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)\b", "<ip>"),
    (r"(?i)\b(?:fe80|f[cd][0-9a-f]{2}|2[0-9a-f]{3}):[0-9a-f:]*:[0-9a-f:]*[0-9a-f]\b", "<ip>"),
    (r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b", "<mail>"),
];

/// Pattern of paths in folders with private contents, up to white space or a quote.
const FOLDERS: &str = r"(?m)(^|[^\w./>-]|//)(?:/(?:home|Users|root|mnt|media|srv|run/user|workspace|scratch|tmp|var/tmp|data|work)|[A-Za-z]:\\Users)(?:[/\\][^\s\x22'`,;:)<>\]]*|\b)";

/// Replaces private data of this machine by placeholders.
pub struct Scrubber {
    /// Longest first, so that a parent folder does not replace only a part of a path.
    folders: Vec<(String, &'static str)>,
    names: Vec<(Regex, &'static str)>,
    patterns: Vec<(Regex, &'static str)>,
    private_paths: Regex,
}

impl Scrubber {
    /// Returns a scrubber for the names of this machine, of this process' user and of these folders.
    ///
    /// # Errors
    /// If a pattern is invalid. Nothing may be written then.
    pub fn for_this_machine(folders: &[&Path]) -> Result<Self, regex::Error> {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let here = std::env::current_dir().map(|path| path.display().to_string()).unwrap_or_default();
        let mut known: Vec<String> = folders.iter().map(|path| path.display().to_string()).collect();
        known.extend(["CARGO_TARGET_DIR", "CARGO_HOME", "RUSTUP_HOME", "TMPDIR"].map(variable));
        known.push(here);
        let users = ["USER", "LOGNAME", "USERNAME", "SUDO_USER"].map(variable);
        let hosts = [file("/proc/sys/kernel/hostname"), file("/etc/hostname"), variable("HOSTNAME")];
        Self::new(&variable("HOME"), &known, &users, &hosts)
    }

    fn new(home: &str, folders: &[String], users: &[String], hosts: &[String]) -> Result<Self, regex::Error> {
        let long = |path: &&String| path.trim_end_matches('/').len() > 1;
        let mut all: Vec<(String, &str)> = folders
            .iter()
            .filter(long)
            .map(|path| (path.trim_end_matches('/').to_owned(), "<folder>"))
            .collect();
        all.extend(
            Some((home.trim_end_matches('/').to_owned(), "<home>")).filter(|(home, _)| home.len() > 1),
        );
        all.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
        let mut names = Vec::new();
        // The first part of a fully qualified host name is replaced, too.
        let parts =
            hosts.iter().flat_map(|host| [host.trim(), host.trim().split('.').next().unwrap_or_default()]);
        let words =
            parts.map(|host| (host, "<host>")).chain(users.iter().map(|user| (user.trim(), "<user>")));
        for (word, placeholder) in words {
            if word.len() > 1 && !COMMON.contains(&word.to_lowercase().as_str()) {
                names.push((Regex::new(&format!(r"(?i)\b{}\b", regex::escape(word)))?, placeholder));
            }
        }
        let patterns = PATTERNS.iter().map(|(pattern, placeholder)| Ok((Regex::new(pattern)?, *placeholder)));
        let patterns = patterns.collect::<Result<_, regex::Error>>()?;
        Ok(Self { folders: all, names, patterns, private_paths: Regex::new(FOLDERS)? })
    }

    /// Returns the text without private data.
    pub fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (folder, placeholder) in &self.folders {
            text = text.replace(folder, placeholder);
        }
        text = self.private_paths.replace_all(&text, "$1<folder>").into_owned();
        for (regex, placeholder) in self.patterns.iter().chain(&self.names) {
            text = regex.replace_all(&text, *placeholder).into_owned();
        }
        text
    }

    /// Scrubs all strings and keys of a JSON value.
    pub fn json(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(values) => values.iter().map(|value| self.json(value)).collect(),
            Value::Object(fields) => {
                fields.iter().map(|(key, value)| (self.text(key), self.json(value))).collect()
            }
            other => other.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrubber() -> Scrubber {
        let texts = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        Scrubber::new(
            "/home/ada",
            &texts(&["/home/ada/src/candle-rocm", "/opt/ada lovelace/out", "/"]),
            &texts(&["ada", "", "root"]),
            &texts(&["difference-engine.example.org\n", "localhost"]),
        )
        .unwrap()
    }

    #[test]
    fn private_data_is_removed() {
        let scrubber = scrubber();
        for private in [
            "thread panicked at /home/ada/src/candle-rocm/xtask/src/main.rs:7:5",
            "/home/charles/.cargo/registry/src/index/x.rs:1:1",
            "/opt/ada lovelace/out/report.md is there",
            "HOME=/home/ada USER=ada LOGNAME=ada HOSTNAME=difference-engine",
            "at /root/secret/project/lib.rs and /root",
            "Ada@difference-engine:~$ ls",
            "mail ada@example.org, host difference-engine.example.org",
            "GPU UUID: GPU-3c1f2b04-1f2e-4a3b-9c8d-1234567890ab",
            "unique_id: 0x7d1f2c3b4a596877 Serial Number: PCB0123-45",
            "\"serial\": \"692210001234\", \"unique id\": \"0xdeadbeef01234567\"",
            "link/ether 52:54:00:12:34:56, inet 192.168.17.4, inet6 fe80::5054:ff:fe12:3456",
            "2001:db8:85a3::8a2e:370:7334 and fd12:3456:789a:1::1",
            "device 0000:c1:00.0 on bus c1:00.0, 00000000:01:00.0",
            r"C:\Users\ada\candle and /Users/ada/candle",
            "file:///home/ada/x and '/mnt/disk of ada/x' and /run/user/1000/x",
            "machine-id=0123456789abcdef0123456789abcdef",
            "/tmp/.tmpAda/report and /data/ada/set",
        ] {
            let clean = scrubber.text(private);
            let lower = clean.to_lowercase();
            for word in [
                "ada",
                "charles",
                "difference",
                "secret",
                "3c1f2b04",
                "7d1f2c",
                "pcb0123",
                "6922",
                "deadbeef",
                "52:54",
                "192.168",
                "fe80",
                "2001:db8",
                "fd12",
                "c1:00",
                "01:00.0",
                "0123456789abcdef",
                "/root",
                "/home",
                "1000",
            ] {
                assert!(!lower.contains(word), "{word:?} is left: {private:?} became {clean:?}");
            }
        }
    }

    #[test]
    fn test_results_and_versions_are_kept() {
        let scrubber = scrubber();
        for kept in [
            "test fuzz::random_cases ... ok",
            "rocm_emulator::exec::f32::add, candle_core::rocm::RocmDevice",
            "gfx1100, ROCm 6.4.43483-a187df25c, HIP 60443483, root",
            "/opt/rocm-6.4.1/lib/libamdhip64.so.6: no such file",
            "hipMemcpyPeerAsync(4000 B from rocm:0 to rocm:1): HIP error 999",
            "elapsed 00:12:34, max_abs_diff=2.50e-7 at 1.5 us, 3:2",
            "argument 1 (scale) has 4 bytes, address 0x7f0012345678",
            "2026-11-22",
        ] {
            assert_eq!(scrubber.text(kept), kept);
        }
    }

    #[test]
    fn positions_in_source_files_are_kept() {
        let clean = scrubber().text("at /home/ada/src/candle-rocm/xtask/src/main.rs:7:5");
        assert_eq!(clean, "at <folder>/xtask/src/main.rs:7:5");
    }

    #[test]
    fn nested_json_is_scrubbed() {
        let value = serde_json::json!({"a": ["/home/ada/x", {"b": "ada", "c": 7}], "/home/ada": null});
        let clean = scrubber().json(&value).to_string();
        assert!(!clean.contains("ada") && clean.contains('7'), "{clean}");
    }
}
