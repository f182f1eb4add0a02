//! Scheduler tests: comparison with published values, textbook formulas in f64, and an exact solution.
use candle_core::{Device, Result as CandleResult, Tensor};
use candle_transformers::models::stable_diffusion::ddim::DDIMSchedulerConfig;
use candle_transformers::models::stable_diffusion::schedulers::SchedulerConfig as _;
use sd_worker::schedulers::{
    BetaSchedule, FinalSigma, Level, Method, Prediction, Purpose, Scheduler, SchedulerConfig, Spacing,
    UniPcKind, alphas_cumprod, normal, normal_batch,
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn scalar(value: f64) -> CandleResult<Tensor> {
    Tensor::new(value, &Device::Cpu)
}

/// Mean and standard deviation of Gaussian data, for which the ideal prediction is known.
const M: f64 = 0.3;
const S: f64 = 0.5;

fn spread(level: Level) -> f64 {
    (level.alpha * S).hypot(level.sigma)
}

fn exact_x0(level: Level, x: f64) -> f64 {
    M + level.alpha * S * S / spread(level).powi(2) * (x - level.alpha * M)
}

/// Returns the sample for which [`exact_x0`] is `x0`.
fn x_of(level: Level, x0: f64) -> f64 {
    level.alpha * M + (x0 - M) * spread(level).powi(2) / (level.alpha * S * S)
}

/// Returns the exact solution at a level, for a sample `z` standard deviations from the mean.
fn exact(level: Level, z: f64) -> f64 {
    level.alpha * M + spread(level) * z
}

fn output(prediction: Prediction, level: Level, x: f64) -> f64 {
    let x0 = exact_x0(level, x);
    let epsilon = (x - level.alpha * x0) / level.sigma;
    match prediction {
        Prediction::Epsilon => epsilon,
        Prediction::VPrediction => level.alpha * epsilon - level.sigma * x0,
        Prediction::Sample => x0,
        Prediction::Flow => epsilon - x0,
    }
}

const NOISE: [f64; 5] = [0.7, -1.1, 0.2, 1.9, -0.4];

/// Returns the samples at all levels, starting with `first`.
fn sample_path(
    config: &SchedulerConfig,
    method: Method,
    steps: usize,
    first: f64,
) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
    let mut scheduler = Scheduler::new(config, method, steps, 0)?;
    let mut xs = vec![first];
    for step in 0..scheduler.steps() {
        let x = xs[step];
        let out = output(config.prediction, scheduler.level(step), x);
        let stepped =
            scheduler.step(&scalar(out)?, &scalar(x)?, &mut || scalar(NOISE[step % NOISE.len()]))?;
        xs.push(stepped.sample.to_scalar()?);
    }
    Ok(xs)
}

fn close(a: f64, b: f64, bound: f64, what: &str) {
    assert!((a - b).abs() <= bound * (1.0 + b.abs()), "{what}: {a} and {b}");
}

#[test]
fn alphas_match_published_values() -> Outcome {
    let config = SchedulerConfig::default();
    let bars = alphas_cumprod(&config)?;
    close(bars[0], 0.99915, 1e-12, "first");
    close(bars[999], 0.0046600, 1e-4, "last");
    let ratio = |bar: f64| ((1.0 - bar) / bar).sqrt();
    close(ratio(bars[999]), 14.6146, 1e-4, "largest sigma");
    close(ratio(bars[0]), 0.0292, 1e-2, "smallest sigma");
    let linear = SchedulerConfig {
        beta_start: 0.0001,
        beta_end: 0.02,
        beta_schedule: BetaSchedule::Linear,
        ..config.clone()
    };
    // The last value of the schedule of DDPM.
    close(alphas_cumprod(&linear)?[999], 4.036e-5, 1e-3, "DDPM");
    let cosine = SchedulerConfig { beta_schedule: BetaSchedule::SquaredcosCapV2, ..config.clone() };
    let f = |t: f64| ((t + 0.008) / 1.008 * std::f64::consts::FRAC_PI_2).cos().powi(2);
    close(alphas_cumprod(&cosine)?[499], f(0.5) / f(0.0), 1e-9, "cosine");
    let rescaled = SchedulerConfig {
        rescale_betas_zero_snr: true,
        spacing: Some(Spacing::Trailing),
        prediction: Prediction::VPrediction,
        ..config
    };
    for method in Method::ALL {
        let scheduler = Scheduler::new(&rescaled, method, 10, 0)?;
        close(scheduler.level(0).ratio(), 4096.0, 1e-6, method.name());
        let last = *sample_path(&rescaled, method, 10, 1.0)?.last().ok_or("no steps")?;
        assert!(last.is_finite(), "{method:?}");
    }
    Ok(())
}

#[test]
fn timesteps_match_diffusers() -> Outcome {
    let cases: [(Method, Spacing, usize, &[f64]); 14] = [
        (Method::Ddim, Spacing::Leading, 5, &[801.0, 601.0, 401.0, 201.0, 1.0]),
        (Method::Ddim, Spacing::Trailing, 4, &[999.0, 749.0, 499.0, 249.0]),
        (Method::Ddim, Spacing::Trailing, 3, &[999.0, 666.0, 332.0]),
        (Method::Ddim, Spacing::Linspace, 5, &[999.0, 749.0, 500.0, 250.0, 0.0]),
        (Method::Euler, Spacing::Linspace, 5, &[999.0, 749.25, 499.5, 249.75, 0.0]),
        (Method::Euler, Spacing::Trailing, 1, &[999.0]),
        (Method::Euler, Spacing::Linspace, 1, &[999.0]),
        (Method::EulerAncestral, Spacing::Leading, 4, &[751.0, 501.0, 251.0, 1.0]),
        (Method::DpmSolver2M, Spacing::Linspace, 4, &[999.0, 749.0, 500.0, 250.0]),
        (Method::DpmSolver2M, Spacing::Leading, 4, &[801.0, 601.0, 401.0, 201.0]),
        (Method::UniPc, Spacing::Trailing, 4, &[999.0, 749.0, 499.0, 249.0]),
        (Method::Lms, Spacing::Linspace, 5, &[999.0, 749.25, 499.5, 249.75, 0.0]),
        // The spacing of LCM is its own.
        (Method::Lcm, Spacing::Linspace, 4, &[999.0, 759.0, 499.0, 259.0]),
        (Method::Lcm, Spacing::Leading, 1, &[999.0]),
    ];
    for (method, spacing, steps, expected) in cases {
        let config = SchedulerConfig { spacing: Some(spacing), ..Default::default() };
        let scheduler = Scheduler::new(&config, method, steps, 0)?;
        let timesteps: Vec<f64> = (0..steps).filter_map(|step| scheduler.timestep(step)).collect();
        assert_eq!(timesteps, expected, "{method:?} {spacing:?}");
        assert_eq!(scheduler.timestep(steps), None);
    }
    let ddim = Scheduler::new(&SchedulerConfig::default(), Method::Ddim, 50, 0)?;
    assert_eq!(
        (ddim.timestep(0), ddim.timestep(1), ddim.timestep(49)),
        (Some(981.0), Some(961.0), Some(1.0))
    );
    Ok(())
}

#[test]
fn karras_noise_levels_match_the_paper() -> Outcome {
    for (method, spacing) in [(Method::DpmSolver2M, Spacing::Leading), (Method::Euler, Spacing::Linspace)] {
        let config = SchedulerConfig { karras: true, spacing: Some(spacing), ..Default::default() };
        let scheduler = Scheduler::new(&config, method, 10, 0)?;
        let bars = alphas_cumprod(&config)?;
        let ratio = |bar: f64| ((1.0 - bar) / bar).sqrt();
        let (high, low) = (ratio(bars[999]), ratio(bars[0]));
        for i in 0..10 {
            let root = high.powf(1.0 / 7.0) + i as f64 / 9.0 * (low.powf(1.0 / 7.0) - high.powf(1.0 / 7.0));
            close(scheduler.level(i).ratio(), root.powi(7), 1e-9, "level");
            // The timestep corresponds approximately to the noise level.
            let t = scheduler.timestep(i).ok_or("no step")? as usize;
            let around = [bars[t.saturating_sub(1)], bars[(t + 1).min(999)]].map(ratio);
            assert!(around[0] <= root.powi(7) * 1.001 && root.powi(7) <= around[1] * 1.001, "{method:?} {i}");
        }
        assert_eq!(scheduler.level(10).sigma, 0.0);
    }
    Ok(())
}

/// Returns the ratios of noise to signal and the timesteps of exponential noise levels.
fn exponential(
    method: Method,
    spacing: Spacing,
    steps: usize,
) -> Result<(Vec<f64>, Vec<f64>), Box<dyn std::error::Error>> {
    let config = SchedulerConfig { exponential: true, spacing: Some(spacing), ..Default::default() };
    let scheduler = Scheduler::new(&config, method, steps, 0)?;
    let ratios = (0..=scheduler.steps()).map(|step| scheduler.level(step).ratio()).collect();
    Ok((ratios, (0..scheduler.steps()).filter_map(|step| scheduler.timestep(step)).collect()))
}

#[test]
fn exponential_noise_levels_match_diffusers() -> Outcome {
    let full = [14.614647, 3.088988, 0.652896, 0.137998, 0.029168, 0.0];
    let cases: [(Method, Spacing, &[f64], &[f64]); 4] = [
        // diffusers has 998 as the first timestep of multistep schedulers, because it truncates 998.9999.
        (Method::DpmSolver2M, Spacing::Leading, &full, &[999.0, 680.0, 233.0, 20.0, 0.0]),
        (
            Method::UniPc,
            Spacing::Linspace,
            &[14.614647, 1.840032, 0.231666, 0.029168, 0.0],
            &[999.0, 538.0, 52.0, 0.0],
        ),
        (Method::Euler, Spacing::Linspace, &full, &[999.0, 680.666992, 233.209732, 20.001972, 0.0]),
        (Method::Euler, Spacing::Leading, &[0.041314, 0.0], &[1.0]),
    ];
    for (method, spacing, expected, expected_timesteps) in cases {
        let (ratios, timesteps) = exponential(method, spacing, expected_timesteps.len())?;
        assert_eq!((ratios.len(), timesteps.len()), (expected.len(), expected_timesteps.len()));
        for (ratio, expected) in ratios.iter().zip(expected) {
            close(*ratio, *expected, 1e-5, method.name());
        }
        for (timestep, expected) in timesteps.iter().zip(expected_timesteps) {
            close(*timestep, *expected, 1e-4, method.name());
        }
    }
    // Methods with trained levels ignore the setting.
    for method in [Method::Ddim, Method::Pndm, Method::Lcm] {
        let plain = Scheduler::new(&SchedulerConfig::default(), method, 5, 0)?;
        let (ratios, _) = exponential(method, Spacing::Leading, 5)?;
        assert!(ratios.iter().enumerate().all(|(step, ratio)| plain.level(step).ratio() == *ratio));
    }
    Ok(())
}

/// Textbook formula of a method: from x at level i to x at level i + 1, given all predictions of x0 so far.
type Reference = fn(levels: &[Level], i: usize, x: f64, x0s: &[f64]) -> f64;

/// Returns the length of step `i` in λ, and x0 at its middle, extrapolated from the last two predictions.
fn extrapolated(levels: &[Level], i: usize, x0s: &[f64]) -> (f64, f64) {
    let t = |level: Level| -level.ratio().ln();
    let h = t(levels[i + 1]) - t(levels[i]);
    let mut denoised = x0s[i];
    if i > 0 {
        let r = (t(levels[i]) - t(levels[i - 1])) / h;
        denoised = (1.0 + 1.0 / (2.0 * r)) * x0s[i] - 1.0 / (2.0 * r) * x0s[i - 1];
    }
    (h, denoised)
}

#[test]
fn steps_match_textbook_formulas() -> Outcome {
    // The samplers of k-diffusion use x / α.
    let euler: Reference = |levels, i, x, x0s| {
        let (a, b) = (levels[i].ratio(), levels[i + 1].ratio());
        let x = x / levels[i].alpha;
        levels[i + 1].alpha * (x + (x - x0s[i]) / a * (b - a))
    };
    let ancestral: Reference = |levels, i, x, x0s| {
        let (a, b) = (levels[i].ratio(), levels[i + 1].ratio());
        let x = x / levels[i].alpha;
        let up = (b * b * (a * a - b * b) / (a * a)).sqrt();
        let down = (b * b - up * up).sqrt();
        levels[i + 1].alpha * (x + (x - x0s[i]) / a * (down - a) + up * NOISE[i % NOISE.len()])
    };
    let two_m: Reference = |levels, i, x, x0s| {
        let x = x / levels[i].alpha;
        if levels[i + 1].sigma == 0.0 {
            return x0s[i];
        }
        let (h, denoised) = extrapolated(levels, i, x0s);
        let (a, b) = (levels[i].ratio(), levels[i + 1].ratio());
        levels[i + 1].alpha * (b / a * x - (-h).exp_m1() * denoised)
    };
    let two_m_sde: Reference = |levels, i, x, x0s| {
        if levels[i + 1].sigma == 0.0 {
            return x0s[i];
        }
        let (h, denoised) = extrapolated(levels, i, x0s);
        let Level { alpha, sigma } = levels[i + 1];
        sigma / levels[i].sigma * (-h).exp() * x
            + alpha * (1.0 - (-2.0 * h).exp()) * denoised
            + sigma * (1.0 - (-2.0 * h).exp()).sqrt() * NOISE[i % NOISE.len()]
    };
    let lms: Reference = |levels, i, x, x0s| {
        // Samples are recomputed from their x0, to which ideal predictions are linear.
        let (a, b) = (levels[i].ratio(), levels[i + 1].ratio());
        let order = (i + 1).min(4);
        let known: Vec<f64> = (0..order).map(|k| levels[i - k].ratio()).collect();
        let derivative = |k: usize| {
            let level = levels[i - k];
            let x = x_of(level, x0s[i - k]);
            (x - level.alpha * x0s[i - k]) / level.sigma
        };
        // Simpson's rule is exact for polynomials of the third degree.
        let polynomial = |at: f64| -> f64 {
            (0..order)
                .map(|j| {
                    let others = (0..order).filter(|k| *k != j);
                    let basis: f64 = others.map(|k| (at - known[k]) / (known[j] - known[k])).product();
                    basis * derivative(j)
                })
                .sum()
        };
        let integral = (b - a) / 6.0 * (polynomial(a) + 4.0 * polynomial((a + b) / 2.0) + polynomial(b));
        levels[i + 1].alpha * (x / levels[i].alpha + integral)
    };
    let cases: [(Method, Spacing, bool, Reference); 9] = [
        (Method::Euler, Spacing::Linspace, false, euler),
        (Method::Euler, Spacing::Leading, true, euler),
        (Method::EulerAncestral, Spacing::Trailing, false, ancestral),
        (Method::DpmSolver2M, Spacing::Linspace, true, two_m),
        (Method::DpmSolver2M, Spacing::Leading, false, two_m),
        (Method::DpmSolver2MSde, Spacing::Linspace, true, two_m_sde),
        (Method::DpmSolver2MSde, Spacing::Leading, false, two_m_sde),
        (Method::Lms, Spacing::Linspace, false, lms),
        (Method::Lms, Spacing::Leading, true, lms),
    ];
    for (method, spacing, karras, reference) in cases {
        let config = SchedulerConfig { spacing: Some(spacing), karras, ..Default::default() };
        let steps = 20;
        let scheduler = Scheduler::new(&config, method, steps, 0)?;
        let levels: Vec<Level> = (0..=steps).map(|i| scheduler.level(i)).collect();
        let xs = sample_path(&config, method, steps, 1.3)?;
        let mut x = 1.3;
        let mut x0s = Vec::new();
        for i in 0..steps {
            x0s.push(exact_x0(levels[i], x));
            x = reference(&levels, i, x, &x0s);
            close(xs[i + 1], x, 1e-9, &format!("{method:?} {spacing:?} step {i}"));
        }
    }
    Ok(())
}

/// φ_k(z) = Σ z^j / (j + k)!
fn phi(k: usize, z: f64) -> f64 {
    let mut term = 1.0 / (1..=k).map(|i| i as f64).product::<f64>();
    let mut total = 0.0;
    for j in 0..60 {
        total += term;
        term *= z / (j + k + 1) as f64;
    }
    total
}

#[test]
fn second_order_unipc_matches_the_paper() -> Outcome {
    for (kind, steps) in [(UniPcKind::Bh2, 12), (UniPcKind::Bh1, 17)] {
        let config = SchedulerConfig { spacing: Some(Spacing::Linspace), uni_pc: kind, ..Default::default() };
        let scheduler = Scheduler::new(&config, Method::UniPc, steps, 0)?;
        let levels: Vec<Level> = (0..=steps).map(|i| scheduler.level(i)).collect();
        let lambda = |i: usize| (levels[i].alpha / levels[i].sigma).ln();
        let walked = sample_path(&config, Method::UniPc, steps, 1.3)?;
        let (mut x, mut before) = (1.3, 0.0);
        let mut x0s: Vec<f64> = Vec::new();
        for i in 0..steps {
            let m = exact_x0(levels[i], x);
            if i > 0 {
                // UniC uses the previous sample and the predictions at both ends and, if available, before.
                let h = lambda(i) - lambda(i - 1);
                let b = if kind == UniPcKind::Bh2 { (-h).exp_m1() } else { -h };
                let m0 = x0s[i - 1];
                let mut change = 0.5 * (m - m0);
                if i > 1 {
                    let r = (lambda(i - 2) - lambda(i - 1)) / h;
                    let (b1, b2) = (-h * phi(2, -h) / b, -h * 2.0 * phi(3, -h) / b);
                    let first = (b2 - b1) / (r - 1.0);
                    change = first * (x0s[i - 2] - m0) / r + (b1 - first) * (m - m0);
                }
                x = levels[i].sigma / levels[i - 1].sigma * before
                    - levels[i].alpha * ((-h).exp_m1() * m0 + b * change);
            }
            x0s.push(m);
            before = x;
            x = match i + 1 == steps {
                true => m,
                false => {
                    let h = lambda(i + 1) - lambda(i);
                    let b = if kind == UniPcKind::Bh2 { (-h).exp_m1() } else { -h };
                    let slope =
                        if i > 0 { (x0s[i - 1] - m) / ((lambda(i - 1) - lambda(i)) / h) } else { 0.0 };
                    levels[i + 1].sigma / levels[i].sigma * x
                        - levels[i + 1].alpha * ((-h).exp_m1() * m + b * 0.5 * slope)
                }
            };
            close(walked[i + 1], x, 1e-9, &format!("{kind:?} step {i}"));
        }
    }
    Ok(())
}

#[test]
fn ddim_matches_candle_transformers() -> Outcome {
    let config = SchedulerConfig::default();
    for steps in [1, 7, 50] {
        let mut upstream = DDIMSchedulerConfig::default().build(steps)?;
        let mut ours = Scheduler::new(&config, Method::Ddim, steps, 0)?;
        let mut x = scalar(1.3)?;
        for (step, timestep) in upstream.timesteps().to_vec().into_iter().enumerate() {
            assert_eq!(ours.timestep(step), Some(timestep as f64));
            let out = scalar((step as f64 * 0.37).sin())?;
            let theirs = upstream.step(&out, timestep, &x)?.to_scalar::<f64>()?;
            x = ours.step(&out, &x, &mut || scalar(f64::NAN))?.sample;
            close(x.to_scalar()?, theirs, 1e-12, &format!("{steps} steps, step {step}"));
        }
    }
    Ok(())
}

/// Values of PNDMScheduler of diffusers 0.42 in f64, for outputs of sin(0.37 i) + 0.3 x in evaluation i.
#[test]
fn pndm_matches_diffusers() -> Outcome {
    use Prediction::{Epsilon, VPrediction};
    let cases: [(Prediction, usize, &[f64], &[f64]); 5] = [
        (Epsilon, 1, &[1.0], &[1.2958204953391568]),
        (Epsilon, 2, &[501.0, 1.0, 1.0], &[1.8602926750319455, 1.4415546057651152, 1.424381290291366]),
        (
            Epsilon,
            5,
            &[801.0, 601.0, 601.0, 401.0, 201.0, 1.0],
            &[1.8305873840095068, 1.1875380423486495, 1.1758878318673955],
        ),
        (Epsilon, 20, &[951.0, 901.0, 901.0], &[3.59762191189752, 3.340854226274873, 3.3194249296554936]),
        (VPrediction, 20, &[951.0], &[0.9792902838400895, 0.7683735400287182, 0.7545959871806829]),
    ];
    for (prediction, steps, timesteps, last) in cases {
        let config = SchedulerConfig { prediction, ..Default::default() };
        let mut scheduler = Scheduler::new(&config, Method::Pndm, steps, 0)?;
        let mut xs = vec![1.3];
        for step in 0..scheduler.steps() {
            let x = xs[step];
            let out = scalar((step as f64 * 0.37).sin() + 0.3 * x)?;
            xs.push(scheduler.step(&out, &scalar(x)?, &mut || scalar(f64::NAN))?.sample.to_scalar()?);
        }
        assert_eq!(scheduler.steps(), if steps == 1 { 1 } else { steps + 1 });
        for (step, timestep) in timesteps.iter().enumerate() {
            assert_eq!(scheduler.timestep(step), Some(*timestep), "{steps} steps");
        }
        for (x, expected) in xs.iter().rev().zip(last.iter().rev()) {
            close(*x, *expected, 1e-9, &format!("{prediction:?} {steps} steps"));
        }
    }
    Ok(())
}

/// Values of HeunDiscreteScheduler of diffusers 0.42 in f64, for outputs of sin(0.37 i) + 0.3 x in evaluation i.
#[test]
fn heun_matches_diffusers() -> Outcome {
    let cases = [
        (Prediction::Epsilon, false, Spacing::Linspace, 5, 2.734861302895902),
        (Prediction::Epsilon, false, Spacing::Linspace, 12, 4.229673926523178),
        (Prediction::Epsilon, true, Spacing::Leading, 12, 3.328250886096167),
        (Prediction::VPrediction, false, Spacing::Trailing, 12, 0.45348628351959785),
    ];
    for (prediction, karras, spacing, steps, expected) in cases {
        let config = SchedulerConfig { prediction, karras, spacing: Some(spacing), ..Default::default() };
        let mut scheduler = Scheduler::new(&config, Method::Heun, steps, 0)?;
        assert_eq!(scheduler.steps(), 2 * steps - 1);
        let mut x = 1.3;
        for step in 0..scheduler.steps() {
            let out = scalar((step as f64 * 0.37).sin() + 0.3 * x)?;
            x = scheduler.step(&out, &scalar(x)?, &mut || scalar(f64::NAN))?.sample.to_scalar()?;
        }
        close(x, expected, 1e-9, &format!("{prediction:?} {spacing:?} {steps} steps"));
    }
    Ok(())
}

/// Values of the schedulers of diffusers 0.42, whose noise levels are f32, for outputs of sin(0.37 i) + 0.3 x and noise
/// [`NOISE`] in evaluation i.
#[test]
fn other_methods_match_diffusers() -> Outcome {
    use Method::{Dpm2, Dpm2Ancestral, DpmSolver2MSde, DpmSolverSde, Lcm, Lms};
    // Steps and settings, then the second timestep and the result.
    let linspace = (5, Prediction::Epsilon, false, Spacing::Linspace);
    let karras = (12, Prediction::Epsilon, true, Spacing::Leading);
    let trailing = (12, Prediction::VPrediction, false, Spacing::Trailing);
    let cases = [
        (Lms, linspace, 749.25, 6.3967249541261),
        (Lms, karras, 845.5767, 2.3176795214714856),
        (Lms, trailing, 916.0, 0.8566300910055441),
        (Dpm2, linspace, 885.2078, 2.224294856745938),
        (Dpm2, karras, 880.63, 3.192117750998884),
        (Dpm2, trailing, 958.7355, 0.4159891870912981),
        (Dpm2Ancestral, linspace, 749.2504, -1.7733552249121252),
        (Dpm2Ancestral, karras, 845.5767, 2.247083686151164),
        (Dpm2Ancestral, trailing, 916.0, -0.0709034665023866),
        (DpmSolverSde, linspace, 885.2077, 1.884150327884071),
        (DpmSolverSde, karras, 880.6301, 2.9717334096727153),
        (DpmSolverSde, trailing, 958.7356, 0.26792541368003836),
        (DpmSolver2MSde, linspace, 799.0, 1.6862362536034008),
        (DpmSolver2MSde, karras, 933.0, -0.623926507915877),
        (DpmSolver2MSde, trailing, 916.0, 0.9463662112690518),
        (Lcm, linspace, 799.0, 2.231842773833567),
        (Lcm, trailing, 919.0, 0.8630123524883062),
    ];
    for (method, (steps, prediction, karras, spacing), timestep, expected) in cases {
        let config = SchedulerConfig { prediction, karras, spacing: Some(spacing), ..Default::default() };
        let mut scheduler = Scheduler::new(&config, method, steps, 0)?;
        close(scheduler.timestep(1).ok_or("one step")?, timestep, 1e-6, method.name());
        let mut x = 1.3;
        for step in 0..scheduler.steps() {
            let out = scalar((step as f64 * 0.37).sin() + 0.3 * x)?;
            let mut noise = || scalar(NOISE[step % NOISE.len()]);
            x = scheduler.step(&out, &scalar(x)?, &mut noise)?.sample.to_scalar()?;
        }
        close(x, expected, 1e-5, &format!("{method:?} {spacing:?} {steps} steps"));
    }
    Ok(())
}

#[test]
fn errors_decrease_with_the_order_of_the_method() -> Outcome {
    // The levels end at the lowest noise of the training, so that only the discretization error remains.
    let base = SchedulerConfig {
        karras: true,
        spacing: Some(Spacing::Linspace),
        final_sigmas_type: FinalSigma::SigmaMin,
        ..Default::default()
    };
    let cases = [
        (Method::Ddim, 2, 1.7, 2.4),
        (Method::Euler, 2, 1.8, 2.2),
        (Method::DpmSolver2M, 2, 3.5, 4.6),
        (Method::Dpm2, 2, 3.5, 4.6),
        (Method::UniPc, 2, 3.5, 12.0),
        (Method::UniPc, 3, 7.0, 30.0),
    ];
    for (method, solver_order, least, most) in cases {
        let config = SchedulerConfig { solver_order, ..base.clone() };
        let error = |steps: usize| -> Result<f64, Box<dyn std::error::Error>> {
            let scheduler = Scheduler::new(&config, method, steps, 0)?;
            let xs = sample_path(&config, method, steps, exact(scheduler.level(0), 1.2))?;
            Ok((xs[scheduler.steps()] - exact(scheduler.level(scheduler.steps()), 1.2)).abs())
        };
        let (coarse, fine) = (error(60)?, error(120)?);
        let ratio = coarse / fine;
        assert!((least..most).contains(&ratio), "{method:?} {solver_order}: {coarse:e} {fine:e} {ratio}");
        assert!(fine < 0.02, "{method:?}: {fine}");
    }
    Ok(())
}

#[test]
fn results_are_independent_of_the_prediction_type() -> Outcome {
    // PNDM extrapolates the outputs themselves.
    for method in Method::ALL.into_iter().filter(|method| *method != Method::Pndm) {
        let of =
            |prediction| sample_path(&SchedulerConfig { prediction, ..Default::default() }, method, 12, 1.1);
        let epsilon = of(Prediction::Epsilon)?;
        for prediction in [Prediction::VPrediction, Prediction::Sample] {
            for (a, b) in of(prediction)?.iter().zip(&epsilon) {
                close(*a, *b, 1e-9, &format!("{method:?} {prediction:?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn the_last_step_returns_the_prediction() -> Outcome {
    let config = SchedulerConfig { set_alpha_to_one: Some(true), ..Default::default() };
    for method in Method::ALL {
        for steps in [1, 2, 9, 30] {
            let mut scheduler = Scheduler::new(&config, method, steps, 0)?;
            let mut x = scalar(0.8)?;
            for step in 0..scheduler.steps() {
                let out = scalar(0.1 * step as f64)?;
                let stepped = scheduler.step(&out, &x, &mut || scalar(1.0))?;
                x = stepped.sample;
                // PNDM and LMS extrapolate, and LCM mixes the sample in.
                let is_x0 = match method {
                    Method::Pndm | Method::Lms => steps == 1,
                    method => method != Method::Lcm,
                };
                if step + 1 == scheduler.steps() && is_x0 {
                    close(x.to_scalar()?, stepped.x0.to_scalar()?, 1e-12, method.name());
                }
            }
            let after = scheduler.step(&x, &x, &mut || scalar(1.0));
            assert!(after.is_err(), "{method:?}: a step after the last");
        }
    }
    Ok(())
}

#[test]
fn skipped_steps_start_at_a_lower_noise_level() -> Outcome {
    let config = SchedulerConfig::default();
    for method in Method::ALL {
        let whole = Scheduler::new(&config, method, 10, 0)?;
        let mut part = Scheduler::new(&config, method, 10, 6)?;
        // Evaluations of the network, and those that are skipped or differ at the start.
        let (steps, skipped, differ) = match method {
            Method::Pndm => (5, 6, 2),
            Method::Heun | Method::Dpm2 | Method::Dpm2Ancestral | Method::DpmSolverSde => (7, 12, 0),
            _ => (4, 6, 0),
        };
        assert_eq!(part.steps(), steps);
        for step in differ..=steps {
            assert_eq!(part.level(step), whole.level(step + skipped), "{method:?}");
        }
        let level = part.level(0);
        let x = part.add_noise(&scalar(2.0)?, &scalar(-1.0)?, 0)?;
        close(x.to_scalar()?, 2.0 * level.alpha - level.sigma, 1e-12, method.name());
        // The first computed step has order 1 like DDIM, because there are no earlier predictions.
        let out = 0.4;
        let stepped = part.step(&scalar(out)?, &x, &mut || scalar(0.0))?;
        let adds_noise = [Method::EulerAncestral, Method::DpmSolver2MSde, Method::DpmSolverSde, Method::Lcm];
        if !adds_noise.contains(&method) {
            let next = part.level(1);
            let x0: f64 = stepped.x0.to_scalar()?;
            close(stepped.sample.to_scalar()?, next.alpha * x0 + next.sigma * out, 1e-9, method.name());
        }
    }
    Ok(())
}

#[test]
fn init_sigma_matches_diffusers() -> Outcome {
    for (method, spacing, whole) in [
        (Method::Ddim, Spacing::Trailing, true),
        (Method::Euler, Spacing::Leading, true),
        (Method::Euler, Spacing::Trailing, false),
        (Method::EulerAncestral, Spacing::Linspace, false),
        (Method::UniPc, Spacing::Linspace, true),
    ] {
        let config = SchedulerConfig { spacing: Some(spacing), ..Default::default() };
        let scheduler = Scheduler::new(&config, method, 8, 0)?;
        let expected = if whole { 1.0 } else { scheduler.level(0).sigma };
        assert_eq!(scheduler.init_sigma(), expected, "{method:?} {spacing:?}");
    }
    Ok(())
}

#[test]
fn invalid_configurations_are_rejected() {
    let default = SchedulerConfig::default();
    let bad = SchedulerConfig { beta_end: 1.5, ..default.clone() };
    let few = SchedulerConfig { trained_betas: Some(vec![0.1; 3]), ..default.clone() };
    for (config, method, steps, skip) in [
        (&default, Method::Ddim, 0, 0),
        (&default, Method::Ddim, 1001, 0),
        (&default, Method::UniPc, 1000, 0),
        (&default, Method::Euler, 5, 5),
        (&bad, Method::Ddim, 5, 0),
        (&few, Method::Ddim, 2, 0),
    ] {
        assert!(Scheduler::new(config, method, steps, skip).is_err(), "{method:?} {steps} {skip}");
    }
    assert!("plms".parse::<Method>().expect_err("no such method").to_string().contains("dpm++2m"));
    for method in Method::ALL {
        assert_eq!(method.name().parse::<Method>().expect("its own name"), method);
        // With the maximum number of steps, levels must stay distinct: multistep methods divide by differences.
        let most = match method {
            Method::DpmSolver2M | Method::DpmSolver2MSde | Method::UniPc => 999,
            Method::Lcm => 50,
            _ => 1000,
        };
        assert!(Scheduler::new(&default, method, most + 1, 0).is_err(), "{method:?}");
        let last = sample_path(&default, method, most, 1.0).expect("the most steps");
        assert!(last.iter().all(|x| x.is_finite()), "{method:?}");
    }
}

#[test]
fn noise_depends_on_the_seed_only() -> Outcome {
    let numbers = normal(7, Purpose::Start, 100_000);
    let mean = |power: i32| numbers.iter().map(|x| f64::from(*x).powi(power)).sum::<f64>() / 1e5;
    // Bounds are five standard errors of the first four moments of a normal distribution.
    for (power, expected, bound) in [(1, 0.0, 0.016), (2, 1.0, 0.023), (3, 0.0, 0.062), (4, 3.0, 0.16)] {
        assert!((mean(power) - expected).abs() < bound, "moment {power}: {}", mean(power));
    }
    assert_eq!(normal(7, Purpose::Start, 33), numbers[..33]);
    for other in
        [normal(8, Purpose::Start, 33), normal(7, Purpose::Encode, 33), normal(7, Purpose::Step(0), 33)]
    {
        assert!(other.iter().zip(&numbers).all(|(a, b)| a != b));
    }
    let shape = (4, 3, 2);
    let both = normal_batch(&[5, 6], Purpose::Step(3), shape, &Device::Cpu)?;
    for (i, seed) in [5, 6].into_iter().enumerate() {
        let one = normal_batch(&[seed], Purpose::Step(3), shape, &Device::Cpu)?;
        assert_eq!(
            both.narrow(0, i, 1)?.flatten_all()?.to_vec1::<f32>()?,
            one.flatten_all()?.to_vec1::<f32>()?
        );
    }
    Ok(())
}
