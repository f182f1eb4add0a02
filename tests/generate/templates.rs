//! Tests chat templates of safetensors folders and GGUF files.
use std::fs;
use std::path::Path;

use anyhow::Result;
use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value as Metadata;
use llm_engine::model::load_text;
use serde_json::json;

use crate::generated;
use crate::oracle::family;
use crate::tiny_models::{BOS, EOS, write_gguf, write_safetensors};

/// Template with the features that published templates use: loops, reversed lists, namespaces, block tags on
/// separate lines, Python methods, tests and functions.
const TEMPLATE: &str = "\
{{ bos_token }}
{%- set last = namespace(user=-1) %}
{%- for message in messages[::-1] %}
    {%- if last.user == -1 and message.content is string and message.role.startswith('us') %}
        {%- set last.user = messages|length - 1 - loop.index0 %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {% if message['role'] == 'system' and not loop.first %}
        {{ raise_exception('the system speaks first') }}
    {% endif %}
{{ '<|' + message.role + '|>' + message['content'].strip() + ('' if loop.index0 == last.user else '\\n') + eos_token }}
{% endfor %}
{% if add_generation_prompt and tools is none %}
<|assistant|>
{%- endif %}";
const RENDERED: &str = "<s><|system|>Be brief.\n</s>\n<|user|>Hello?</s>\n<|assistant|>";

fn render(path: &Path) -> Result<String> {
    let system = json!({"role": "system", "content": "Be brief."});
    load_text(path)?.chat(&json!([system, {"role": "user", "content": "  Hello? "}]), None)
}

#[test]
fn templates_are_found_in_all_supported_files() -> Result<()> {
    let folder = tempfile::tempdir()?;
    write_safetensors(folder.path(), family("Llama"), 9, 1)?;
    let config = folder.path().join("tokenizer_config.json");
    // A token is a string or an object, a template is a string or a list of named templates.
    let own = json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": TEMPLATE});
    fs::write(&config, own.to_string())?;
    assert_eq!(render(folder.path())?, RENDERED);
    let templates =
        json!([{"name": "tool_use", "template": "no"}, {"name": "default", "template": TEMPLATE}]);
    let own = json!({"bos_token": "<s>", "eos_token": "</s>", "chat_template": templates});
    fs::write(&config, own.to_string())?;
    assert_eq!(render(folder.path())?, RENDERED);
    // A separate file takes precedence.
    fs::write(folder.path().join("chat_template.jinja"), "{{ messages | length }} turns{{ eos_token }}")?;
    assert_eq!(render(folder.path())?, "2 turns</s>");

    let metadata = [
        ("tokenizer.chat_template", Metadata::String(TEMPLATE.into())),
        ("tokenizer.ggml.eos_token_id", Metadata::U32(EOS)),
        ("tokenizer.ggml.bos_token_id", Metadata::U32(BOS)),
    ];
    let path = write_gguf(folder.path(), family("Llama"), 9, GgmlDType::F32, &metadata)?;
    assert_eq!(render(&path)?, RENDERED);
    Ok(())
}

#[test]
fn a_chat_uses_the_rendered_template_as_prompt() -> Result<()> {
    let folder = tempfile::tempdir()?;
    write_safetensors(folder.path(), family("Llama"), 9, 1)?;
    let own = json!({"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE});
    fs::write(folder.path().join("tokenizer_config.json"), own.to_string())?;
    let common = ["--device", "cpu", "--temperature", "0", "--tokens", "8", "--prompt"];
    let with = |args: &[&str]| -> Result<Vec<u32>> {
        Ok(generated(folder.path(), &[&common[..], args].concat())?.0.tokens)
    };
    let chat = with(&["Hello?", "--chat", "--system", "Be brief."])?;
    assert_eq!(chat, with(&[RENDERED])?);
    assert_ne!(chat, with(&["Hello?"])?);
    Ok(())
}

#[test]
fn template_errors_are_reported() -> Result<()> {
    let folder = tempfile::tempdir()?;
    write_safetensors(folder.path(), family("Llama"), 9, 1)?;
    let file = folder.path().join("chat_template.jinja");
    for (template, message) in [
        ("{{ raise_exception('System role not supported') }}", "System role not supported"),
        ("{% for", "chat template"),
        ("{{ messages[0].content.no_such_method() }}", "no_such_method"),
    ] {
        fs::write(&file, template)?;
        let error = format!("{:#}", render(folder.path()).expect_err("refused"));
        assert!(error.contains(message), "{error}");
    }
    Ok(())
}
