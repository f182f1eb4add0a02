//! Pictures in prompts: shared blocks, one picture in a step, features that a step computes together.
use std::path::Path;
use std::sync::Arc;

use llm_engine::engine::scheduler::{Limits, Plan, Scheduler};
use llm_engine::engine::sequence::{PromptPictures, Sequence};
use llm_engine::model::vision::{ImageProcessor, Placement, ProcessedPicture, PromptAxes, VisionConfig};
use llm_engine::step::BLOCK_SIZE;
use pictures::RgbPicture;

/// Token that stands for a feature.
const IMAGE: u32 = 40;

fn picture(seed: usize) -> Arc<ProcessedPicture> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/model/data/qwen2.5-vl");
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let config = serde_json::from_str(&config).unwrap();
    let vision = VisionConfig::from_json(&config, 32, 1e-6).unwrap().unwrap();
    let processor = ImageProcessor::from_folder(&folder, &config, &vision, 99).unwrap();
    let rgb = (0..3 * 40 * 24).map(|place| (place * (7 + seed) % 251) as u8).collect();
    Arc::new(processor.process(&RgbPicture { width: 40, height: 24, rgb }).unwrap())
}

/// Returns a prompt of texts of these lengths with pictures between them, 15 tokens each.
fn prompt(texts: &[usize], pictures: &[&Arc<ProcessedPicture>], is_bidirectional: bool) -> Sequence<()> {
    let (mut tokens, mut places) = (Vec::new(), Vec::new());
    for (index, length) in texts.iter().enumerate() {
        tokens.extend((0..*length).map(|token| (token % 30 + index) as u32));
        if let Some(picture) = pictures.get(index) {
            let first = tokens.len();
            tokens.resize(first + picture.tokens(), IMAGE);
            let span = first..tokens.len();
            places.push(Placement { picture: Arc::clone(picture), spans: Vec::from([span]) });
        }
    }
    let axes = (!is_bidirectional).then(|| Arc::new(PromptAxes::new(tokens.len(), &places)));
    Sequence::new(tokens, ()).with_pictures(PromptPictures { placements: places, axes, is_bidirectional })
}

fn scheduler(rows: usize) -> (Scheduler<()>, Plan) {
    let limits = Limits { running: 4, rows, prompt_rows: rows, scored_rows: rows };
    (Scheduler::new(40, true, limits), Plan::default())
}

/// Plans and commits a step. Returns the numbers of rows of its sequences, and its rows of pictures.
fn step(scheduler: &mut Scheduler<()>, plan: &mut Plan) -> (Vec<usize>, Vec<(usize, usize)>) {
    scheduler.plan(plan);
    scheduler.commit(plan);
    let rows = plan.step.sequences.iter().map(|sequence| sequence.rows.len()).collect();
    scheduler.awaiting_token().for_each(|sequence| sequence.push(1));
    (rows, plan.step.pictures.iter().map(|part| (part.rows.len(), part.first)).collect())
}

#[test]
fn blocks_are_shared_by_prompts_with_the_same_pictures() {
    let [one, other] = [1, 2].map(picture);
    assert_eq!(one.tokens(), 15);
    let (mut scheduler, mut plan) = scheduler(512);
    let texts = [20, 40];
    scheduler.submit(prompt(&texts, &[&one], false));
    assert_eq!(step(&mut scheduler, &mut plan), (vec![75], vec![(15, 0)]));
    // Rows of text after the picture have positions that are smaller by the saved ones.
    assert_eq!(
        (plan.step.axes[20], plan.step.axes[34], plan.step.axes[35]),
        ([20; 3], [20, 22, 24], [25; 3])
    );
    scheduler.remove(|_| true, &mut Vec::new());
    scheduler.submit(prompt(&texts, &[&picture(1)], false));
    assert_eq!(step(&mut scheduler, &mut plan), (vec![75 - 4 * BLOCK_SIZE], vec![]));
    assert_eq!(plan.step.axes[0], [4 * 16 - 10; 3]);
    scheduler.remove(|_| true, &mut Vec::new());
    // Another picture, and text that only looks like one.
    scheduler.submit(prompt(&texts, &[&other], false));
    assert_eq!(step(&mut scheduler, &mut plan), (vec![75 - BLOCK_SIZE], vec![(15, 0)]));
    let tokens = scheduler.running()[0].prompt().to_vec();
    scheduler.remove(|_| true, &mut Vec::new());
    scheduler.submit(Sequence::new(tokens, ()));
    assert_eq!(step(&mut scheduler, &mut plan), (vec![75 - BLOCK_SIZE], vec![]));
    assert!(plan.copies.is_empty() && plan.step.axes.is_empty());
}

#[test]
fn a_step_encodes_one_picture() {
    let [one, other] = [1, 2].map(picture);
    let (mut scheduler, mut plan) = scheduler(512);
    scheduler.submit(prompt(&[20, 3, 8], &[&one, &other], false));
    scheduler.submit(prompt(&[9, 9], &[&other], false));
    scheduler.submit(prompt(&[0, 30], &[], false));
    assert_eq!(step(&mut scheduler, &mut plan), (vec![38, 9, 30], vec![(15, 0)]));
    // Texts without pictures have the same position on all axes.
    assert_eq!(plan.step.axes.len(), 77);
    assert_eq!(plan.step.axes[76], [29; 3]);
    assert_eq!(step(&mut scheduler, &mut plan), (vec![23, 1], vec![(15, 0)]));
    assert_eq!(step(&mut scheduler, &mut plan), (vec![1, 24, 1], vec![(15, 0)]));
    assert_eq!(step(&mut scheduler, &mut plan), (vec![1, 1, 1], vec![]));
}

#[test]
fn pictures_are_divided_unless_their_tokens_see_each_other() {
    let one = picture(1);
    let (mut divided, mut plan) = scheduler(10);
    divided.submit(prompt(&[6, 8], &[&one], false));
    assert_eq!(step(&mut divided, &mut plan), (vec![10], vec![(4, 0)]));
    assert_eq!(step(&mut divided, &mut plan), (vec![10], vec![(10, 4)]));
    assert_eq!(step(&mut divided, &mut plan), (vec![9], vec![(1, 14)]));
    let (mut whole, mut plan) = scheduler(10);
    whole.submit(prompt(&[6, 8], &[&one], true));
    assert_eq!(step(&mut whole, &mut plan), (vec![21], vec![(15, 0)]));
    assert_eq!(step(&mut whole, &mut plan), (vec![8], vec![]));
}

#[test]
fn whole_pictures_wait_for_blocks() {
    let one = picture(1);
    let (mut plan, limits) =
        (Plan::default(), Limits { running: 4, rows: 64, prompt_rows: 64, scored_rows: 64 });
    // Two blocks are left for the second prompt, whose picture ends in the third.
    let mut scheduler = Scheduler::new(4, false, limits);
    scheduler.submit(prompt(&[30], &[], true));
    assert_eq!(step(&mut scheduler, &mut plan).0, [30]);
    scheduler.submit(prompt(&[20, 6], &[&one], true));
    for _ in 0..3 {
        let (rows, pictures) = step(&mut scheduler, &mut plan);
        assert!(pictures.iter().all(|part| *part == (15, 0)), "{rows:?} {pictures:?}");
    }
    scheduler.remove(|sequence| sequence.id() == 1, &mut Vec::new());
    let mut seen = 0;
    for _ in 0..3 {
        seen += step(&mut scheduler, &mut plan).1.len();
    }
    assert_eq!(seen, 1);
}
