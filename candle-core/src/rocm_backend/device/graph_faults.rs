//! Known faults of graphs in ROCm's versions, and the switch of graphs.
use super::device::{DeviceState, RocmDevice};
use crate::rocm_backend::stream::check;
use rocm_rs::hip::{self, bindings};
use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Environment variable: `0` disables graphs, and `check` treats every graph as affected by a known fault, so that its
/// first replays are compared with results without a graph.
pub const GRAPHS_VARIABLE: &str = "CANDLE_ROCM_GRAPHS";

/// State of graphs on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GraphState {
    /// Graphs can be captured, and no fault is known.
    Enabled,
    /// Graphs can be captured. Because of the given fault, some of them need a comparison of their first replays, see
    /// [`RocmGraph::known_fault`](crate::rocm::RocmGraph::known_fault).
    Checked(&'static str),
    /// Graphs cannot be captured, for the given reason.
    Disabled(String),
}

/// A known fault of graphs.
struct KnownFault {
    /// Prefixes of the architectures that are affected.
    archs: &'static [&'static str],
    /// First version of HIP that is affected, and first that is not: major * 10_000_000 + minor * 100_000 + patch.
    versions: std::ops::Range<i32>,
    /// Number of nodes of the smallest graph that is affected.
    nodes: usize,
    text: &'static str,
}

const KNOWN_FAULTS: &[KnownFault] = &[
    KnownFault {
        archs: &["gfx942", "gfx950"],
        // HIP's patch number does not distinguish the releases 7.2.0 to 7.2.3 from later ones.
        versions: 70_200_000..70_300_000,
        nodes: 0,
        text: "ROCm 7.2.0 to 7.2.3 may compute wrong results in replays of graphs",
    },
    KnownFault {
        archs: &["gfx1201"],
        versions: 0..i32::MAX,
        nodes: 200,
        text: "replays of graphs of more than about 200 nodes may compute wrong results on gfx1201",
    },
];

const REQUESTED: &str = "CANDLE_ROCM_GRAPHS=check requests a comparison of the first replays";

/// Reasons why graphs are disabled, by GPU.
static DISABLED: Mutex<BTreeMap<usize, String>> = Mutex::new(BTreeMap::new());

fn setting() -> &'static str {
    static SETTING: OnceLock<String> = OnceLock::new();
    SETTING.get_or_init(|| {
        let value = std::env::var(GRAPHS_VARIABLE).unwrap_or_default();
        let value = value.trim();
        if !matches!(value, "" | "0" | "1" | "check") {
            tracing::warn!("{GRAPHS_VARIABLE}={value} is invalid and ignored; expected 0, 1 or check");
        }
        value.to_string()
    })
}

/// Returns the version of the HIP runtime; `None` if the driver is not ROCm.
fn hip_version() -> Option<i32> {
    static VERSION: OnceLock<Option<i32>> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let mut version = 0;
        // SAFETY: the pointer is valid for a write.
        let code = unsafe { bindings::hipRuntimeGetVersion(&mut version) };
        let result = hip::Error::from_hip_error(code);
        // An error only means that there is no version; `check` clears it.
        check(result, String::new, String::new).ok().map(|()| version)
    })
}

fn fault_of(arch: &str, version: Option<i32>, nodes: usize) -> Option<&'static str> {
    let is_affected = |fault: &&KnownFault| {
        fault.archs.iter().any(|prefix| arch.starts_with(prefix))
            && version.is_some_and(|version| fault.versions.contains(&version))
            && nodes >= fault.nodes
    };
    KNOWN_FAULTS.iter().find(is_affected).map(|fault| fault.text)
}

/// Returns the known fault that affects graphs of `nodes` nodes.
pub(super) fn known_fault(state: &DeviceState, nodes: usize) -> Option<&'static str> {
    match setting() {
        "check" => Some(REQUESTED),
        _ => fault_of(state.arch(), hip_version(), nodes),
    }
}

/// Returns the reason why graphs are disabled.
pub(super) fn disabled(state: &DeviceState) -> Option<String> {
    if setting() == "0" {
        return Some(format!("{GRAPHS_VARIABLE}=0"));
    }
    let disabled = DISABLED.lock().unwrap_or_else(PoisonError::into_inner);
    disabled.get(&state.stream.ordinal()).cloned()
}

impl RocmDevice {
    /// Returns whether graphs can be captured on this GPU.
    pub fn graph_state(&self) -> GraphState {
        match (disabled(self.state()), known_fault(self.state(), usize::MAX)) {
            (Some(reason), _) => GraphState::Disabled(reason),
            (None, Some(fault)) => GraphState::Checked(fault),
            (None, None) => GraphState::Enabled,
        }
    }

    /// Disables graphs on this GPU for the rest of the process, for example because a replay computed a wrong result.
    /// The reason is logged once. Graphs that were captured before can still be replayed.
    pub fn disable_graphs(&self, reason: impl Into<String>) {
        let (reason, device) = (reason.into(), self.state().label());
        let mut disabled = DISABLED.lock().unwrap_or_else(PoisonError::into_inner);
        disabled.entry(self.ordinal()).or_insert_with(|| {
            tracing::warn!("graphs are disabled on {device}: {reason}");
            reason
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_depend_on_architecture_version_and_size() {
        let is_faulty = |arch, version, nodes| fault_of(arch, version, nodes).is_some();
        assert!(is_faulty("gfx942:sramecc+:xnack-", Some(70_226_015), 1));
        assert!(is_faulty("gfx950", Some(70_200_000), 0));
        for version in [Some(60_443_483), Some(70_151_831), Some(70_300_000), None] {
            assert!(!is_faulty("gfx942", version, 1000), "{version:?}");
        }
        assert!(is_faulty("gfx1201", Some(60_443_483), 200) && !is_faulty("gfx1201", Some(60_443_483), 199));
        assert!(!is_faulty("gfx1100", Some(70_200_000), 1000) && !is_faulty("gfx1200", Some(1), 1000));
    }
}
