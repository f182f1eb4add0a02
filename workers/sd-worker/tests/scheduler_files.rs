//! Parsing of scheduler_config.json: published files, defaults, old files and unsupported settings.
use sd_worker::schedulers::{Level, Method, Prediction, Scheduler, SchedulerConfig, Spacing, UniPcKind};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Returns a file of `class` with the required keys and `more`.
fn file(class: &str, more: &str) -> String {
    format!(
        r#"{{"_class_name": "{class}", "beta_end": 0.012, "beta_schedule": "scaled_linear", "beta_start": 0.00085{more}}}"#
    )
}

#[test]
fn published_files_are_parsed() -> Outcome {
    let v1 = SchedulerConfig::from_json(
        r#"{"_class_name": "PNDMScheduler", "beta_end": 0.012, "beta_schedule": "scaled_linear", "beta_start": 0.00085,
            "num_train_timesteps": 1000, "set_alpha_to_one": false, "skip_prk_steps": true, "steps_offset": 1,
            "trained_betas": null, "clip_sample": false}"#,
        "StableDiffusionPipeline",
    )?;
    assert_eq!(v1, SchedulerConfig { spacing: None, method: Method::Pndm, ..Default::default() });
    let turbo = SchedulerConfig::from_json(
        &file(
            "EulerAncestralDiscreteScheduler",
            r#", "prediction_type": "epsilon", "steps_offset": 1, "timestep_spacing": "trailing""#,
        ),
        "StableDiffusionXLPipeline",
    )?;
    assert_eq!((turbo.method, turbo.spacing), (Method::EulerAncestral, Some(Spacing::Trailing)));
    let lcm = SchedulerConfig::from_json(
        &file("LCMScheduler", r#", "original_inference_steps": 40, "timestep_scaling": 9.0"#),
        "LatentConsistencyModelPipeline",
    )?;
    assert_eq!((lcm.method, lcm.original_inference_steps, lcm.timestep_scaling), (Method::Lcm, 40, 9.0));
    let sde = file("DPMSolverMultistepScheduler", r#", "algorithm_type": "sde-dpmsolver++""#);
    let sde = SchedulerConfig::from_json(&sde, "StableDiffusionPipeline")?;
    assert_eq!(sde.method, Method::DpmSolver2MSde);
    // A file written by Python, with a number literal that is not valid JSON.
    let dpm = SchedulerConfig::from_json(
        r#"{"_class_name": "DPMSolverMultistepScheduler", "_diffusers_version": "0.21.4",
            "algorithm_type": "dpmsolver++", "beta_end": 0.012, "beta_schedule": "scaled_linear", "beta_start": 0.00085,
            "clip_sample": false, "dynamic_thresholding_ratio": 0.995, "euler_at_final": false,
            "lambda_min_clipped": -Infinity, "lower_order_final": true, "num_train_timesteps": 1000,
            "prediction_type": "v_prediction", "sample_max_value": 1.0, "set_alpha_to_one": false,
            "skip_prk_steps": true, "solver_order": 2, "solver_type": "midpoint", "steps_offset": 1,
            "thresholding": false, "timestep_spacing": "leading", "trained_betas": null, "use_karras_sigmas": true,
            "use_lu_lambdas": false, "variance_type": null}"#,
        "StableDiffusionPipeline",
    )?;
    let prediction = Prediction::VPrediction;
    let expected =
        SchedulerConfig { karras: true, method: Method::DpmSolver2M, prediction, ..Default::default() };
    assert_eq!(dpm, expected);
    let exponential = file("EulerDiscreteScheduler", r#", "use_exponential_sigmas": true"#);
    assert!(SchedulerConfig::from_json(&exponential, "")?.exponential);
    let silent = SchedulerConfig::from_json(
        r#"{"_class_name": "UniPCMultistepScheduler", "solver_type": "bh1"}"#,
        "",
    )?;
    assert_eq!((silent.method, silent.spacing, silent.uni_pc), (Method::UniPc, None, UniPcKind::Bh1));
    assert_eq!((silent.beta_start, silent.beta_end, silent.steps_offset), (0.0001, 0.02, 0));
    Ok(())
}

#[test]
fn non_standard_numbers_are_null_and_strings_unchanged() -> Outcome {
    let read = |more: &str| SchedulerConfig::from_json(&file("DDIMScheduler", more), "");
    let plain = read("")?;
    for same in [
        r#", "a": -Infinity, "b": [Infinity, NaN], "c":{"d":NaN}"#,
        r#", "a": "-Infinity", "b": "\"NaN", "c": "\\", "d": NaN, "NaN": "Infinity \\\" NaN""#,
        r#", "trained_betas": NaN, "ü": Infinity"#,
    ] {
        assert_eq!(read(same)?, plain, "{same}");
    }
    for named in [r#", "prediction_type": "NaN""#, r#", "beta_schedule": "-Infinity""#] {
        let word = named.split('"').nth(3).ok_or("no word")?;
        assert!(read(named).is_err_and(|error| error.to_string().contains(word)), "{named}");
    }
    assert!(read(r#", "a": 1NaN"#).is_err() && read(r#", "a": nan"#).is_err());
    Ok(())
}

#[test]
fn missing_settings_have_the_defaults_of_the_method() -> Outcome {
    let methods = [
        (Method::Ddim, Spacing::Leading),
        (Method::Euler, Spacing::Linspace),
        (Method::EulerAncestral, Spacing::Linspace),
        (Method::DpmSolver2M, Spacing::Linspace),
        (Method::UniPc, Spacing::Linspace),
    ];
    for class in ["PNDMScheduler", "DDIMScheduler", "EulerDiscreteScheduler", "DPMSolverMultistepScheduler"] {
        let silent = SchedulerConfig::from_json(&file(class, ""), "")?;
        let more = r#", "timestep_spacing": "trailing", "set_alpha_to_one": false"#;
        let named = SchedulerConfig::from_json(&file(class, more), "")?;
        for (method, spacing) in methods {
            let levels = |config: &SchedulerConfig| -> sd_worker::Result<Vec<(Option<f64>, Level)>> {
                let scheduler = Scheduler::new(config, method, 7, 0)?;
                Ok((0..=7).map(|step| (scheduler.timestep(step), scheduler.level(step))).collect())
            };
            let with = |spacing, one| SchedulerConfig {
                spacing: Some(spacing),
                set_alpha_to_one: Some(one),
                ..silent.clone()
            };
            assert_eq!(levels(&silent)?, levels(&with(spacing, true))?, "{class} {method:?}");
            // Settings in the file apply to every method.
            let named_levels = levels(&named)?;
            assert_eq!(named_levels, levels(&with(Spacing::Trailing, false))?, "{class} {method:?}");
            assert_eq!(named_levels[7].1.sigma > 0.0, method == Method::Ddim, "{class} {method:?}");
        }
    }
    Ok(())
}

#[test]
fn old_files_are_corrected_like_in_diffusers() -> Outcome {
    let old = [
        "",
        r#", "steps_offset": 0, "clip_sample": true"#,
        r#", "steps_offset": null, "clip_sample": null"#,
        r#", "steps_offset": 2"#,
    ];
    let expected = SchedulerConfig::from_json(&file("DDIMScheduler", r#", "steps_offset": 1"#), "")?;
    for more in old {
        for pipeline in ["StableDiffusionPipeline", "StableDiffusionInpaintPipeline"] {
            let config = SchedulerConfig::from_json(&file("DDIMScheduler", more), pipeline)?;
            assert_eq!(config, expected, "{more} {pipeline}");
        }
    }
    for pipeline in ["StableDiffusionXLPipeline", "StableDiffusionXLInpaintPipeline", ""] {
        assert_eq!(SchedulerConfig::from_json(&file("DDIMScheduler", old[0]), pipeline)?.steps_offset, 0);
        assert!(SchedulerConfig::from_json(&file("DDIMScheduler", old[1]), pipeline).is_err());
    }
    Ok(())
}

#[test]
fn unsupported_settings_are_named_in_the_error() {
    let files = [
        ("", "EOF"),
        ("[]", "invalid type"),
        (r#"{"_class_name": "TCDScheduler"}"#, "TCDScheduler"),
        (r#"{"_class_name": "FlowMatchHeunDiscreteScheduler"}"#, "FlowMatchHeun"),
        (
            r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "invert_sigmas": true}"#,
            "invert_sigmas = true",
        ),
        (r#"{"clip_sample": true}"#, "clip_sample"),
        (r#"{"use_karras_sigmas": true, "use_exponential_sigmas": true}"#, "both true"),
        (r#"{"use_flow_sigmas": true}"#, "use_flow_sigmas"),
        (r#"{"prediction_type": "flow"}"#, "flow"),
        (r#"{"beta_schedule": "exp"}"#, "exp"),
    ];
    for (text, named) in files {
        let error = SchedulerConfig::from_json(text, "").expect_err(text).to_string();
        assert!(error.contains(named), "{text}: {error}");
    }
    let classes = [
        ("DPMSolverMultistepScheduler", "algorithm_type", r#""sde-dpmsolver""#),
        ("DPMSolverMultistepScheduler", "algorithm_type", r#""dpmsolver""#),
        ("DPMSolverMultistepScheduler", "solver_order", "3"),
        ("DPMSolverMultistepScheduler", "solver_order", "1"),
        ("DPMSolverMultistepScheduler", "solver_type", r#""heun""#),
        ("EulerDiscreteScheduler", "interpolation_type", r#""log_linear""#),
        ("EulerDiscreteScheduler", "timestep_type", r#""continuous""#),
        ("PNDMScheduler", "skip_prk_steps", "false"),
        ("UniPCMultistepScheduler", "disable_corrector", "[0, 1]"),
        ("UniPCMultistepScheduler", "predict_x0", "false"),
    ];
    for (class, key, value) in classes {
        let text = file(class, &format!(r#", "{key}": {value}"#));
        let error =
            SchedulerConfig::from_json(&text, "StableDiffusionPipeline").expect_err(&text).to_string();
        assert!(error.contains(&format!("{key} = ")) && error.contains("not supported"), "{text}: {error}");
        // Other classes ignore the key.
        assert!(
            SchedulerConfig::from_json(&file("DDIMScheduler", &format!(r#", "{key}": {value}"#)), "").is_ok()
        );
    }
}
