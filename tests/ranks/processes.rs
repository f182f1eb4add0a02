//! Ranks in processes of their own. Each loads its part and computes the same steps. The test program runs itself.
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use candle_core::DType;
use candle_core::rocm::collective::{Communicator, Rendezvous};
use llm_engine::model::load_part;
use llm_engine::model::part::Part;
use serial_test::serial;

use super::logits::logits;
use super::{SELECTED, devices, load, models, options};

/// Variable with the arguments of a child process, as JSON: rank, number of ranks, model, and the folder for its files.
const CHILD: &str = "RANKS_TEST_PROCESS";
/// No test waits for so long.
const LONG: Duration = Duration::from_secs(300);

fn bits(logits: Vec<Vec<f32>>) -> Vec<Vec<u32>> {
    logits.into_iter().map(|row| row.into_iter().map(f32::to_bits).collect()).collect()
}

/// The program of a child process; returns at once in the parent.
#[test]
#[serial]
fn rank_of_a_process() {
    let Ok(arguments) = std::env::var(CHILD) else { return };
    let (rank, ranks, model, folder): (usize, usize, PathBuf, PathBuf) =
        serde_json::from_str(&arguments).unwrap();
    let device = devices(rank + 1).remove(rank);
    let place = Rendezvous::File(folder.join("id"));
    let communicator = Communicator::connect(&device, rank, ranks, &place, LONG).unwrap();
    let part = Part::of_rank(&communicator);
    let decoder = load_part(&model, part, &device, options(Some(DType::F32)), &mut |_| ()).unwrap();
    let found = serde_json::to_vec(&bits(logits(decoder))).unwrap();
    std::fs::write(folder.join(rank.to_string()), found).unwrap();
}

fn start(rank: usize, ranks: usize, model: &Path, folder: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes::rank_of_a_process"])
        .env(CHILD, serde_json::to_string(&(rank, ranks, model, folder)).unwrap())
        .spawn()
        .unwrap()
}

#[test]
#[serial]
fn logits_of_processes_equal_those_of_threads() {
    let mixtral = tempfile::tempdir().unwrap();
    models::write(mixtral.path(), &models::mixtral_config(), &models::weights(true, models::KEY_HEADS));
    let cases = [(&*models::tiny_llama(), 2), (mixtral.path(), 4)];
    for (model, ranks) in cases.into_iter().filter(|(_, ranks)| *ranks <= *SELECTED) {
        let folder = tempfile::tempdir().unwrap();
        let children: Vec<Child> = (0..ranks).map(|rank| start(rank, ranks, model, folder.path())).collect();
        children.into_iter().for_each(|mut child| assert!(child.wait().unwrap().success()));
        let expected = bits(logits(load(model, ranks, options(Some(DType::F32))).unwrap()));
        for rank in 0..ranks {
            let found = std::fs::read(folder.path().join(rank.to_string())).unwrap();
            let found: Vec<Vec<u32>> = serde_json::from_slice(&found).unwrap();
            assert!(found == expected, "rank {rank} of {ranks}, {}", model.display());
        }
    }
}
