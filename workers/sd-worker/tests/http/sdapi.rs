//! The API of AUTOMATIC1111's web UI.
use sd_worker::schedulers::Method;
use serde_json::{Value, json};

use crate::fixture::{Ask, MODEL, SIDE, with, worker};
use crate::images::{base64, mask, picture, png};

/// Fields that the client `webuiapi` sends to `txt2img`.
const FIELDS: &str = r#"{
    "enable_hr": false, "hr_scale": 2, "hr_upscaler": "Latent", "hr_second_pass_steps": 0, "hr_resize_x": 0,
    "hr_resize_y": 0, "hr_checkpoint_name": null, "hr_sampler_name": null, "hr_scheduler": null, "hr_prompt": "",
    "hr_negative_prompt": "", "denoising_strength": 0.7, "firstphase_width": 0, "firstphase_height": 0,
    "prompt": "a red circle", "styles": [], "seed": 5, "subseed": -1, "subseed_strength": 0.0,
    "seed_resize_from_h": 0, "seed_resize_from_w": 0, "batch_size": 1, "n_iter": 1, "steps": 3, "cfg_scale": 7.0,
    "width": 32, "height": 32, "restore_faces": false, "tiling": false, "do_not_save_samples": false,
    "do_not_save_grid": false, "negative_prompt": "", "eta": 1.0, "s_churn": 0, "s_tmax": 0, "s_tmin": 0,
    "s_noise": 1, "override_settings": {}, "override_settings_restore_afterwards": true, "sampler_name": "Euler a",
    "scheduler": "automatic", "sampler_index": "Euler a", "script_name": null, "script_args": [],
    "send_images": true, "save_images": false, "alwayson_scripts": {}
}"#;

/// Returns [`FIELDS`] with changes.
fn payload(more: Value) -> Value {
    let mut body: Value = serde_json::from_str(FIELDS).unwrap();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Returns the fields of `img2img`.
fn edit(more: Value) -> Value {
    let mut body = payload(json!({
        "init_images": [base64(&png(SIDE, SIDE))], "resize_mode": 0, "denoising_strength": 0.5, "mask_blur": 4,
        "inpainting_fill": 0, "inpaint_full_res": true, "inpaint_full_res_padding": 0, "inpainting_mask_invert": 0,
        "initial_noise_multiplier": 1, "image_cfg_scale": 1.5, "include_init_images": false,
    }));
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn images_equal_those_of_the_other_apis() {
    let worker = worker();
    let ask = async |path: &str, body: Value| {
        let answer = worker.post(&format!("/sdapi/v1/{path}"), &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()
    };
    for (sampler, scheduler, own, levels) in [
        ("Euler a", "automatic", "euler-a", ""),
        ("DPM++ 2M", "Automatic", "dpm++2m", "karras"),
        ("DPM++ 2M", "normal", "dpm++2m", ""),
        ("Heun Karras", "automatic", "heun", "karras"),
        ("plms", "automatic", "pndm", ""),
        ("DPM++ 2M SDE Karras", "automatic", "dpm++2m-sde", "karras"),
        ("DPM++ 2M SDE", "automatic", "dpm++2m-sde", "exponential"),
        ("Euler Exponential", "automatic", "euler", "exponential"),
        ("Euler Exponential", "karras", "euler", "karras"),
        ("DPM++ 2M Karras", "exponential", "dpm++2m", "exponential"),
        ("DPM++ SDE", "automatic", "dpm++sde", "karras"),
        ("DPM2 a", "normal", "dpm2-a", ""),
        ("LMS", "automatic", "lms", ""),
        ("LCM", "karras", "lcm", "karras"),
    ] {
        let body = payload(json!({"sampler_name": sampler, "scheduler": scheduler, "batch_size": 2}));
        let made = ask("txt2img", body).await;
        let job = json!({"prompt": "a red circle", "steps": 3, "seed": 5, "guidance": 7, "n": 2, "scheduler": own,
            "karras": levels == "karras", "exponential": levels == "exponential"});
        let expected = worker.complete(&job).await;
        let images = made["images"].as_array().unwrap();
        assert_eq!(images.len(), 2);
        for (image, expected) in images.iter().zip(expected["images"].as_array().unwrap()) {
            assert_eq!(picture(image), picture(expected), "{sampler}");
        }
    }
    // Image to image, with a mask and other sizes.
    let made = ask("img2img", edit(json!({"sampler_name": "DDIM"}))).await;
    let job = json!({"prompt": "a red circle", "steps": 3, "seed": 5, "guidance": 7, "scheduler": "ddim",
        "image": base64(&png(SIDE, SIDE)), "strength": 0.5});
    let expected = worker.complete(&job).await;
    assert_eq!(picture(&made["images"][0]), picture(&expected["image"]));
    let mask = base64(&mask(SIDE, SIDE));
    let masked = ask("img2img", edit(json!({"sampler_name": "DDIM", "mask": mask}))).await;
    assert_ne!(masked["images"][0], made["images"][0]);
    let larger = json!({"init_images": [base64(&png(50, 70))], "mask": mask, "width": 40, "height": 24});
    let resized = picture(&ask("img2img", edit(larger)).await["images"][0]);
    assert_eq!((resized.width(), resized.height()), (40, 24));
}

#[tokio::test]
async fn a_second_pass_enlarges_the_image() {
    let worker = worker();
    let hires = json!({"enable_hr": true, "hr_scale": 1.5, "hr_upscaler": "Latent (bicubic)", "hr_second_pass_steps": 2,
        "denoising_strength": 0.6, "hr_sampler_name": "Use same sampler", "hr_prompt": ""});
    let made = worker.post("/sdapi/v1/txt2img", &payload(hires)).await.json();
    let job = json!({"prompt": "a red circle", "steps": 3, "seed": 5, "guidance": 7, "scheduler": "euler-a",
        "hires": {"scale": 1.5, "upscaler": "latent (bicubic)", "steps": 2, "strength": 0.6}});
    let expected = worker.complete(&job).await;
    assert_eq!(picture(&made["images"][0]), picture(&expected["image"]));
    assert_eq!((&expected["width"], &expected["height"]), (&json!(48), &json!(48)));
    let info: Value = serde_json::from_str(made["info"].as_str().unwrap()).unwrap();
    let text = info["infotexts"][0].as_str().unwrap();
    let expected =
        "Denoising strength: 0.6, Hires resize: 48x48, Hires steps: 2, Hires upscaler: Latent (bicubic)";
    assert!(text.contains(expected), "{text}");
    // Both sides are covered, and the edges are cut off.
    let sides = json!({"enable_hr": true, "hr_resize_x": 64, "hr_resize_y": 40, "hr_upscaler": "Lanczos"});
    let made = worker.post("/sdapi/v1/txt2img", &payload(sides)).await.json();
    let cut = picture(&made["images"][0]);
    assert_eq!((cut.width(), cut.height()), (64, 40));
    // Automatic noise levels are those of a first pass without `scheduler`, and no upscaler is the default.
    let names = json!({"enable_hr": true, "hr_scheduler": "Automatic", "hr_upscaler": ""});
    let made = [names, json!({"enable_hr": true})].map(payload);
    let mut images = Vec::new();
    for body in &made {
        let answer = worker.post("/sdapi/v1/txt2img", body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        images.push(answer.json()["images"][0].clone());
    }
    assert_eq!(picture(&images[0]), picture(&images[1]));
    // Image to image ignores the fields.
    let same =
        worker.post("/sdapi/v1/img2img", &edit(json!({"enable_hr": true, "hr_scale": 2}))).await.json();
    assert_eq!(picture(&same["images"][0]).width(), SIDE);
    for (field, body) in [
        ("hires", json!({"hires": {}, "image": base64(&png(SIDE, SIDE))})),
        ("hires", json!({"hires": {"scales": 2}})),
        ("hires.upscaler", json!({"hires": {"upscaler": ""}})),
        ("hires.strength", json!({"hires": {"strength": 1.5}})),
        ("hires.strength", json!({"hires": {"strength": 1e-9}})),
        ("hires.strength", json!({"hires": {"strength": 1e-300}})),
        ("hires.height", json!({"hires": {"height": 2048}, "width": 64, "height": 32})),
    ] {
        let mut job = json!({"prompt": "x"});
        job.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        let answer = worker.post("/v1/jobs", &job).await;
        let param = answer.json()["error"]["param"].as_str().unwrap_or_default().to_owned();
        assert!(answer.status == 400 && param.starts_with(field), "{field}: {}", answer.text);
    }
}

#[tokio::test]
async fn images_describe_themselves() {
    let worker = worker();
    let body = payload(json!({"prompt": "猫, (red:1.2)", "negative_prompt": "blue", "n_iter": 2,
        "override_settings": {"CLIP_stop_at_last_layers": 2}}));
    let made = worker.post("/sdapi/v1/txt2img", &body).await.json();
    let info: Value = serde_json::from_str(made["info"].as_str().unwrap()).unwrap();
    assert_eq!((&info["all_seeds"], &info["seed"]), (&json!([5, 6]), &json!(5)));
    assert_eq!(made["parameters"]["prompt"], "猫, (red:1.2)");
    for (i, seed) in [5, 6].into_iter().enumerate() {
        let expected = format!(
            "猫, (red:1.2)\nNegative prompt: blue\nSteps: 3, Sampler: Euler a, Schedule type: Automatic, CFG scale: 7, \
             Seed: {seed}, Size: {SIDE}x{SIDE}, Model: {MODEL}, Clip skip: 2"
        );
        assert_eq!(info["infotexts"][i], expected);
        let read = worker.post("/sdapi/v1/png-info", &json!({"image": made["images"][i]})).await.json();
        assert_eq!((&read["info"], &read["items"]["parameters"]), (&json!(expected), &json!(expected)));
        assert_eq!(read["parameters"]["Seed"], seed.to_string());
    }
    let none = worker.post("/sdapi/v1/png-info", &json!({"image": base64(&png(8, 8))})).await.json();
    assert_eq!(none, json!({"info": "", "items": {}, "parameters": {}}));
    let made =
        worker.post("/sdapi/v1/txt2img", &payload(json!({"send_images": false, "seed": -1}))).await.json();
    assert_eq!(made["images"], json!([]));
}

#[tokio::test]
async fn invalid_requests_name_their_field() {
    let worker = worker();
    for (path, body, param) in [
        ("txt2img", payload(json!({"sampler_name": "DPM adaptive"})), "sampler_name"),
        ("txt2img", payload(json!({"scheduler": "polyexponential"})), "scheduler"),
        ("txt2img", payload(json!({"enable_hr": true, "hr_upscaler": "R-ESRGAN 4x+"})), "hires.upscaler"),
        ("txt2img", payload(json!({"enable_hr": true, "hr_scale": 0})), "hires.scale"),
        ("txt2img", payload(json!({"enable_hr": true, "hr_resize_x": 33})), "hires.width"),
        ("txt2img", payload(json!({"enable_hr": true, "hr_resize_y": 1 << 20})), "hires.height"),
        ("txt2img", payload(json!({"enable_hr": true, "hr_scale": 16.5})), "hires.scale"),
        ("txt2img", payload(json!({"enable_hr": true, "hr_resize_x": 2048})), "hires.width"),
        ("txt2img", payload(json!({"enable_hr": true, "denoising_strength": 0})), "hires.strength"),
        ("txt2img", payload(json!({"enable_hr": true, "hr_second_pass_steps": 1000})), "hires.steps"),
        ("txt2img", payload(json!({"enable_hr": true, "hr_prompt": "another"})), "hr_prompt"),
        ("txt2img", payload(json!({"enable_hr": true, "hr_sampler_name": "DDIM"})), "hr_sampler_name"),
        ("txt2img", payload(json!({"tiling": true})), "tiling"),
        ("txt2img", payload(json!({"styles": ["x"]})), "styles"),
        ("txt2img", payload(json!({"override_settings": {"eta": 1}})), "override_settings.eta"),
        ("txt2img", payload(json!({"init_images": [base64(&png(8, 8))]})), "init_images"),
        ("txt2img", payload(json!({"guidance": 3})), "guidance"),
        ("txt2img", payload(json!({"steps": 0})), "steps"),
        ("txt2img", payload(json!({"width": 33})), "width"),
        ("txt2img", payload(json!({"batch_size": u64::MAX, "n_iter": 2})), "n"),
        ("img2img", edit(json!({"init_images": []})), "init_images"),
        ("img2img", edit(json!({"init_images": ["x"]})), "init_images"),
        ("img2img", edit(json!({"mask": base64(b"no image")})), "mask"),
        ("img2img", edit(json!({"resize_mode": 1})), "resize_mode"),
        ("img2img", edit(json!({"inpainting_mask_invert": 1})), "inpainting_mask_invert"),
        ("img2img", edit(json!({"denoising_strength": 2})), "strength"),
        ("png-info", json!({}), "image"),
        ("png-info", json!({"image": "?"}), "image"),
        ("options", json!({"CLIP_stop_at_last_layers": 3}), "CLIP_stop_at_last_layers"),
        ("options", json!({"eta_ddim": 1}), "eta_ddim"),
    ] {
        let answer = worker.post(&format!("/sdapi/v1/{path}"), &body).await;
        let error = answer.json()["error"].clone();
        assert!(answer.status == 400 && error["param"] == param, "{param}: {}", answer.text);
    }
    let other = payload(json!({"override_settings": {"sd_model_checkpoint": "other"}}));
    assert_eq!(worker.post("/sdapi/v1/txt2img", &other).await.status, 404);
    assert_eq!(worker.post("/sdapi/v1/options", &json!({"sd_model_checkpoint": "other"})).await.status, 404);
}

#[tokio::test]
async fn lists_and_options_are_returned() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ink.safetensors"), "").unwrap();
    let worker = with(&["--lora-dir", folder.path().to_str().unwrap()]);
    let get = async |path: &str| {
        let answer = worker.get(&format!("/sdapi/v1/{path}")).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        answer.json()
    };
    assert_eq!(get("sd-models").await[0]["title"], MODEL);
    assert_eq!(get("loras").await[0]["name"], "ink");
    let samplers = get("samplers").await;
    assert_eq!(samplers.as_array().unwrap().len(), Method::ALL.len());
    assert!(samplers.as_array().unwrap().iter().any(|sampler| sampler["name"] == "Euler a"));
    let schedulers = get("schedulers").await;
    assert_eq!((&schedulers[2]["name"], &schedulers[3]["name"]), (&json!("karras"), &json!("exponential")));
    assert_eq!(get("sd-vae").await, json!([]));
    assert_eq!(get("upscalers").await[0]["name"], "Lanczos");
    assert_eq!(get("latent-upscale-modes").await[1]["name"], "Latent (antialiased)");
    assert_eq!(get("scripts").await["txt2img"], json!(["controlnet"]));
    assert_eq!(get("options").await["CLIP_stop_at_last_layers"], 1);
    let options = json!({"sd_model_checkpoint": MODEL, "CLIP_stop_at_last_layers": 2});
    assert_eq!(worker.post("/sdapi/v1/options", &options).await.status, 200);
    assert_eq!(get("options").await["CLIP_stop_at_last_layers"], 2);
    let skipped = worker.post("/sdapi/v1/txt2img", &payload(json!({}))).await.json();
    assert_eq!(skipped["parameters"]["clip_skip"], 2);
}

#[tokio::test]
async fn progress_is_reported_and_interrupted() {
    let worker = worker();
    let idle = worker.get("/sdapi/v1/progress").await.json();
    assert_eq!((&idle["progress"], &idle["state"]["job_count"]), (&json!(0.0), &json!(0)));
    assert_eq!(worker.post("/sdapi/v1/interrupt", &json!({})).await.status, 200);
    worker.gate.hold();
    let body = payload(json!({"steps": 12}));
    let generation = worker.post("/sdapi/v1/txt2img", &body);
    let interrupted = async {
        worker.until("running", |worker| worker.served.queue.status().running == 1).await;
        let progress = worker.get("/sdapi/v1/progress").await.json();
        assert_eq!(progress["state"]["job_count"], 1, "{progress}");
        worker.post("/sdapi/v1/interrupt", &json!({})).await;
        worker.gate.open();
    };
    let (answer, ()) = tokio::join!(generation, interrupted);
    assert_eq!((answer.status.as_u16(), answer.json()["error"]["code"].as_str()), (409, Some("cancelled")));
    worker.idle().await;
    assert_eq!(worker.get("/sdapi/v1/progress").await.json()["state"]["job_count"], 0);
}
