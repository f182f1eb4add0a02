//! Rejected requests and their errors.
use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use crate::fixture::{Ask, form_body, form_request, json_request, with, worker, worker_of};
use crate::images::{base64, invalid_images, mask, png};
use crate::tiny_model::Kind;

const JOBS: &str = "/v1/jobs";
const GENERATIONS: &str = "/v1/images/generations";

fn changed(change: &Value) -> Value {
    let mut body = json!({"prompt": "a red circle", "steps": 1});
    body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn invalid_values_name_their_field() {
    let worker =
        with(&["--max-side", "128", "--max-pixels", "8192", "--max-steps", "20", "--max-images", "3"]);
    let image = base64(&png(32, 32));
    let both = [JOBS, GENERATIONS];
    let jobs = [JOBS].as_slice();
    let generations = [GENERATIONS].as_slice();
    // Paths, change of a valid body, expected code and param.
    let table: &[(&[&str], Value, &str, &str)] = &[
        (&both, json!({"prompt": null}), "invalid_value", "prompt"),
        (&both, json!({"prompt": 3}), "invalid_value", "prompt"),
        (&both, json!({"prompt": "x".repeat(10_001)}), "invalid_value", "prompt"),
        (&both, json!({"negative_prompt": "x".repeat(10_001)}), "invalid_value", "negative_prompt"),
        (&both, json!({"prompt": "(a:1000)"}), "invalid_value", "prompt"),
        (&both, json!({"negative_prompt": "(".repeat(3000) + "x"}), "invalid_value", "negative_prompt"),
        (&both, json!({"clip_skip": 0}), "invalid_value", "clip_skip"),
        (&both, json!({"clip_skip": 3}), "invalid_value", "clip_skip"),
        (&both, json!({"steps": 0}), "invalid_value", "steps"),
        (&both, json!({"steps": -1}), "invalid_value", "steps"),
        (&both, json!({"steps": 21}), "invalid_value", "steps"),
        (&both, json!({"steps": u64::MAX}), "invalid_value", "steps"),
        (&both, json!({"steps": 1.5}), "invalid_value", "steps"),
        (&both, json!({"steps": "many"}), "invalid_value", "steps"),
        (&both, json!({"guidance": -1}), "invalid_value", "guidance"),
        (&both, json!({"guidance": 101}), "invalid_value", "guidance"),
        (&both, json!({"guidance": 1e300}), "invalid_value", "guidance"),
        (&both, json!({"guidance": "NaN"}), "invalid_value", "guidance"),
        (&both, json!({"n": 0}), "invalid_value", "n"),
        (&both, json!({"n": 4}), "invalid_value", "n"),
        (&both, json!({"n": u64::MAX}), "invalid_value", "n"),
        (&both, json!({"seed": -1}), "invalid_value", "seed"),
        (&both, json!({"seed": 0.5}), "invalid_value", "seed"),
        (&both, json!({"scheduler": "magic"}), "invalid_value", "scheduler"),
        (&both, json!({"karras": "true"}), "invalid_value", "karras"),
        (&both, json!({"karras": 1}), "invalid_value", "karras"),
        (&both, json!({"exponential": 1}), "invalid_value", "exponential"),
        (&both, json!({"karras": true, "exponential": true}), "invalid_value", "exponential"),
        (&both, json!({"strength": 0.5}), "invalid_value", "strength"),
        (jobs, json!({"strength": 0, "image": image}), "invalid_value", "strength"),
        (jobs, json!({"strength": 1.1, "image": image}), "invalid_value", "strength"),
        (jobs, json!({"width": 0}), "invalid_value", "width"),
        (jobs, json!({"width": 33}), "invalid_value", "width"),
        (jobs, json!({"height": 36}), "invalid_value", "height"),
        (jobs, json!({"height": 136}), "invalid_value", "height"),
        (jobs, json!({"width": u64::MAX}), "invalid_value", "width"),
        (jobs, json!({"width": 128, "height": 128}), "invalid_value", "width"),
        (jobs, json!({"width": 24, "image": image}), "invalid_value", "image"),
        (jobs, json!({"image": base64(&png(36, 32))}), "invalid_value", "image"),
        (jobs, json!({"image": base64(&png(136, 8))}), "invalid_value", "image"),
        (jobs, json!({"image": base64(&png(128, 72))}), "invalid_value", "image"),
        (jobs, json!({"image": ""}), "invalid_value", "image"),
        (jobs, json!({"image": "no base64!"}), "invalid_value", "image"),
        (jobs, json!({"image": "https://example.org/a.png"}), "invalid_value", "image"),
        (jobs, json!({"image": "data:image/png,abc"}), "invalid_value", "image"),
        (jobs, json!({"image": 3}), "invalid_value", "image"),
        (jobs, json!({"mask": base64(&mask(32, 32))}), "invalid_value", "mask"),
        (jobs, json!({"image": image, "mask": base64(&mask(32, 24))}), "invalid_value", "mask"),
        (jobs, json!({"image": image, "mask": "data:,"}), "invalid_value", "mask"),
        (jobs, json!({"format": "gif"}), "invalid_value", "format"),
        (jobs, json!({"worker_id": "worker-2"}), "invalid_value", "worker_id"),
        (jobs, json!({"callback": true}), "invalid_value", "callback"),
        (jobs, json!({"callback": "http://127.0.0.1:1"}), "invalid_value", "callback"),
        (jobs, json!({"negative_promt": "blue"}), "invalid_value", "negative_promt"),
        (generations, json!({"size": "32"}), "invalid_value", "size"),
        (generations, json!({"size": "0x0"}), "invalid_value", "size"),
        (generations, json!({"size": "33x32"}), "invalid_value", "size"),
        (generations, json!({"size": "32x4096"}), "invalid_value", "size"),
        (generations, json!({"size": "128x128"}), "invalid_value", "size"),
        (generations, json!({"size": 32}), "invalid_value", "size"),
        (generations, json!({"response_format": "url"}), "invalid_value", "response_format"),
        (generations, json!({"output_format": "gif"}), "invalid_value", "output_format"),
        (jobs, json!({"device": 3}), "invalid_value", "device"),
        (generations, json!({"image": image}), "invalid_value", "image"),
        (generations, json!({"mask": image}), "invalid_value", "mask"),
        (generations, json!({"stream": true}), "unsupported_parameter", "stream"),
        (generations, json!({"quality": "best"}), "invalid_value", "quality"),
        (generations, json!({"background": "transparent"}), "unsupported_parameter", "background"),
        (generations, json!({"negative_promt": "blue"}), "unsupported_parameter", "negative_promt"),
        (generations, json!({"width": 32}), "unsupported_parameter", "width"),
    ];
    for (paths, change, code, param) in table {
        for path in *paths {
            let answer = worker.post(path, &changed(change)).await;
            let expected = (400, (*code).to_owned(), Some((*param).to_owned()));
            let short: String = change.to_string().chars().take(80).collect();
            assert_eq!(answer.error(), expected, "{path} {short}: {}", answer.text);
        }
    }
    for path in both {
        let error = worker.post(path, &changed(&json!({"model": "other"}))).await.error();
        assert_eq!(error, (404, "model_not_found".into(), Some("model".into())));
        let error = worker.post(path, &json!({"steps": 1})).await.error();
        assert_eq!(error, (400, "invalid_value".into(), Some("prompt".into())));
    }
    worker.idle().await;
    assert_eq!(worker.served.queue.status().steps, 0);
}

#[tokio::test]
async fn invalid_images_are_rejected_in_all_apis() {
    let worker = worker();
    let good = png(32, 32);
    for (what, file) in invalid_images() {
        for param in ["image", "mask"] {
            let (image, cover) = if param == "image" { (&file, &good) } else { (&good, &file) };
            let body = changed(&json!({"image": base64(image), "mask": base64(cover)}));
            let answer = worker.post(JOBS, &body).await;
            assert_eq!(
                answer.error(),
                (400, "invalid_value".into(), Some(param.into())),
                "{what}: {}",
                answer.text
            );
            let body = form_body(&[
                ("prompt", None, b"x"),
                ("image", Some("a"), image),
                ("mask", Some("b"), cover),
                ("steps", None, b"1"),
            ]);
            let answer = worker.read(form_request(body)).await;
            assert_eq!(
                answer.error(),
                (400, "invalid_value".into(), Some(param.into())),
                "{what}: {}",
                answer.text
            );
        }
    }
    let large = vec![0x89; 21 << 20];
    let body = form_body(&[("prompt", None, b"x"), ("image", Some("a"), &large)]);
    assert_eq!(worker.read(form_request(body)).await.error().2.as_deref(), Some("image"));
    assert_eq!(worker.served.queue.status().steps, 0);
    assert_eq!(worker.served.decoders.available_permits(), 4);
}

#[tokio::test]
async fn inpainting_models_require_image_and_mask() {
    let worker = worker_of(Kind::Inpaint, &[], None);
    let image = base64(&png(32, 32));
    for (change, param) in [(json!({}), "image"), (json!({"image": image}), "mask")] {
        let error = worker.post(JOBS, &changed(&change)).await.error();
        assert_eq!(error, (400, "invalid_value".into(), Some(param.into())), "{change}");
    }
}

#[tokio::test]
async fn invalid_json_is_4xx() {
    let worker = worker();
    for (bytes, code) in [
        (&b"{\"prompt\": "[..], "invalid_json"),
        (b"", "invalid_json"),
        (b"[1, 2]", "invalid_value"),
        (b"\"text\"", "invalid_value"),
        (b"{} {}", "invalid_json"),
        (b"{\"prompt\": \"\xff\xfe\"}", "invalid_utf8"),
        (b"{\"prompt\": \"x\", \"guidance\": 1e999}", "invalid_value"),
        (b"{\"prompt\": \"x\", \"guidance\": NaN}", "invalid_json"),
        (b"{\"prompt\": \"x\", \"steps\": 1, \"steps\": 1}", "invalid_value"),
        (b"{\"prompt\": \"x\", \"typo\": null, \"typo\": null}", "invalid_value"),
    ] {
        for path in [JOBS, GENERATIONS] {
            // Trailing data is tested with the generations API only.
            if path == JOBS && bytes == b"{} {}" {
                continue;
            }
            let found = worker.read(json_request(path, bytes.to_vec())).await.error();
            assert_eq!(
                (found.0, found.1.as_str()),
                (400, code),
                "{path} {:?}",
                String::from_utf8_lossy(bytes)
            );
        }
    }
    let large = json!({"prompt": "x", "image": "x".repeat(33 << 20)}).to_string().into_bytes();
    assert_eq!(worker.read(json_request(JOBS, large)).await.error().0, 413);
    let text = Request::post(JOBS).header("content-type", "text/plain").body(Body::from("{}")).unwrap();
    assert_eq!(worker.read(text).await.error().0, 415);
    assert_eq!(worker.get(GENERATIONS).await.error().0, 405);
    assert_eq!(worker.get("/v1/nothing").await.error().0, 404);
}

#[tokio::test]
async fn invalid_forms_are_4xx() {
    let worker = worker();
    let file = png(32, 32);
    let image = ("image", Some("a.png"), file.as_slice());
    let prompt = ("prompt", None, b"x".as_slice());
    let long = vec![b'x'; 70_000];
    let many: Vec<(&str, Option<&str>, &[u8])> =
        (0..70).map(|i| (["a", "b"][i % 2], None, b"".as_slice())).collect();
    for (parts, param) in [
        (vec![prompt], Some("image")),
        (vec![image], Some("prompt")),
        (vec![image, prompt, image], Some("image")),
        (vec![image, prompt, prompt], Some("prompt")),
        (vec![image, prompt, ("n", None, b"two".as_slice())], Some("n")),
        (vec![image, prompt, ("n", None, b"-1".as_slice())], Some("n")),
        (vec![image, prompt, ("guidance", None, b"NaN".as_slice())], Some("guidance")),
        (vec![image, prompt, ("guidance", None, b"inf".as_slice())], Some("guidance")),
        (vec![image, prompt, ("guidance", None, b"1e999".as_slice())], Some("guidance")),
        (vec![image, prompt, ("strength", None, b"0".as_slice())], Some("strength")),
        (vec![image, prompt, ("steps", None, b"0".as_slice())], Some("steps")),
        (vec![image, prompt, ("karras", None, b"maybe".as_slice())], Some("karras")),
        (vec![image, prompt, ("size", None, b"64x64".as_slice())], Some("image")),
        (vec![image, prompt, ("stream", None, b"true".as_slice())], Some("stream")),
        (vec![image, prompt, ("cfg_scale", None, b"7".as_slice())], Some("cfg_scale")),
        (vec![image, ("image[]", Some("b.png"), file.as_slice()), prompt], Some("image[]")),
        (vec![image, prompt, ("response_format", None, b"url".as_slice())], Some("response_format")),
        (vec![image, ("prompt", None, b"\xff".as_slice())], Some("prompt")),
        (vec![image, ("prompt", None, long.as_slice())], Some("prompt")),
        (many, Some("a")),
    ] {
        let answer = worker.read(form_request(form_body(&parts))).await;
        let error = answer.error();
        assert_eq!((error.0, error.2.as_deref()), (400, param), "{}", answer.text);
    }
    let good = form_body(&[image, prompt]);
    for cut in [0, 10, 60, 120, good.len() - 30, good.len() - 4] {
        let error = worker.read(form_request(good[..cut].to_vec())).await.error();
        assert_eq!(error.0, 400, "{cut}");
    }
    let request = Request::post("/v1/images/edits");
    let json = request.header("content-type", "application/json").body(Body::from("{}")).unwrap();
    assert_eq!(worker.read(json).await.error().0, 415);
    let large = form_body(&[prompt, ("image", Some("a"), &vec![0; 33 << 20])]);
    assert_eq!(worker.read(form_request(large)).await.error().0, 413);
    assert_eq!(worker.served.queue.status().steps, 0);
}
