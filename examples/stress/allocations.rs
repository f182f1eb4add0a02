//! Allocates and drops many tensors of different sizes.
use super::Gpus;
use anyhow::{Result, ensure};
use candle_core::{DType, Tensor};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

const THREADS: usize = 8;
/// Number of tensors that a thread allocates, and how many of them it keeps at the same time.
const ALLOCATED: usize = 150;
const KEPT: usize = 20;
/// Number of tensors that are dropped in random order.
const SHUFFLED: usize = 10_000;

/// Returns a random number of elements between 1 and 65 635, small ones as likely as large ones.
fn size(rng: &mut StdRng) -> usize {
    (1 << rng.random_range(0..17)) + rng.random_range(0..100)
}

/// Allocates and drops tensors on eight threads, and checks some of them for writes by other threads.
pub fn on_threads(gpus: &Gpus, rng: &mut StdRng) -> Result<()> {
    let seeds: Vec<u64> = (0..THREADS).map(|_| rng.random()).collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            seeds.into_iter().map(|seed| scope.spawn(move || on_one_thread(gpus, seed))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("an allocating thread panicked"))
    })
}

fn on_one_thread(gpus: &Gpus, seed: u64) -> Result<()> {
    let device = gpus.first();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut kept: Vec<(f32, Tensor)> = Vec::new();
    for step in 0..ALLOCATED {
        let value = (seed % 1000) as f32 + step as f32;
        kept.push((value, Tensor::full(value, size(&mut rng), &device)?));
        if kept.len() == KEPT {
            let (value, tensor) = kept.swap_remove(rng.random_range(0..KEPT));
            if step % 8 == 0 {
                let (least, most) = (tensor.min_all()?, tensor.max_all()?);
                let found = [least.to_scalar::<f32>()?, most.to_scalar::<f32>()?];
                ensure!(found == [value; 2], "a tensor filled with {value} has range {found:?}");
            }
        }
    }
    Ok(())
}

/// Allocates ten thousand tensors and drops them in random order.
pub fn in_random_order(gpus: &Gpus, rng: &mut StdRng) -> Result<()> {
    let device = gpus.first();
    let make =
        |_| -> Result<Option<Tensor>> { Ok(Some(Tensor::zeros(size(rng) / 16 + 1, DType::U8, &device)?)) };
    let mut tensors: Vec<Option<Tensor>> = (0..SHUFFLED).map(make).collect::<Result<_>>()?;
    let mut order: Vec<usize> = (0..SHUFFLED).collect();
    order.shuffle(rng);
    order.into_iter().for_each(|place| tensors[place] = None);
    Ok(())
}
