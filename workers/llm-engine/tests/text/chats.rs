//! Chat templates of well-known models, compared with their expected output.
use llm_engine::text::ChatTemplate;
use serde_json::{Value, json};

const CHATML: &str = "{% for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}";

const LLAMA3: &str = "{% set loop_messages = messages %}{% for message in loop_messages %}\
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' %}\
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";

const GEMMA: &str = "{{ bos_token }}{% if messages[0]['role'] == 'system' %}\
{{ raise_exception('no system role') }}{% endif %}\
{% for message in messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must take turns') }}{% endif %}\
{% if message['role'] == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}\
{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}";

fn render(template: &str, messages: Value) -> String {
    ChatTemplate::new(template, None, "<s>", "</s>").unwrap().prompt(&messages, None, None).unwrap()
}

fn turns() -> Value {
    json!([
        {"role": "user", "content": " Hi \n"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "<b>&'\""},
    ])
}

#[test]
fn well_known_templates_render_correctly() {
    let wanted = [
        (
            CHATML,
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n\
             <|im_start|>user\n<b>&'\"<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            LLAMA3,
            "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>\
             <|start_header_id|>assistant<|end_header_id|>\n\nHello<|eot_id|>\
             <|start_header_id|>user<|end_header_id|>\n\n<b>&'\"<|eot_id|>\
             <|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (
            GEMMA,
            "<s><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>\n\
             <start_of_turn>user\n<b>&'\"<end_of_turn>\n<start_of_turn>model\n",
        ),
    ];
    for (template, wanted) in wanted {
        assert_eq!(render(template, turns()), wanted);
    }
}

#[test]
fn template_exceptions_keep_their_message() {
    let gemma = ChatTemplate::new(GEMMA, None, "", "").unwrap();
    let render_error = |messages: Value| format!("{:#}", gemma.prompt(&messages, None, None).unwrap_err());
    let twice = json!([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]);
    assert!(render_error(twice).contains("roles must take turns"));
    assert!(render_error(json!("hi")).contains("must be an array"));
    assert!(render_error(json!(["hi"])).contains("must be an object"));
    assert!(
        render_error(json!([{"role": "user", "content": [{"type": "image_url"}]}])).contains("image_url")
    );
    assert!(ChatTemplate::new("{% if %}", None, "", "").is_err());
    assert!(ChatTemplate::new("", Some("{{ nothing"), "", "").is_err());
}

#[test]
fn tojson_matches_python() {
    let tools = json!([{"b": "<\u{E9}'>", "a": [1, 2.5, true, null, [], {}]}]);
    let with = |expression: &str| {
        let template =
            ChatTemplate::new(&format!("{{{{ tools[0] | {expression} }}}}"), None, "", "").unwrap();
        template.prompt(&json!([]), Some(&tools), None).unwrap()
    };
    assert_eq!(with("tojson"), "{\"b\": \"<\u{E9}'>\", \"a\": [1, 2.5, true, null, [], {}]}");
    assert_eq!(with("tojson(sort_keys=true)"), "{\"a\": [1, 2.5, true, null, [], {}], \"b\": \"<\u{E9}'>\"}");
    assert_eq!(with("tojson(separators=[',', ':'])"), "{\"b\":\"<\u{E9}'>\",\"a\":[1,2.5,true,null,[],{}]}");
    let lines = "{\n  \"b\": \"<\u{E9}'>\",\n  \"a\": [\n    1,\n    2.5,\n    true,\n    null,\n    [],\n    {}\n  ]\n}";
    assert_eq!(with("tojson(indent=2)"), lines);
    // As in Transformers, the first argument is `ensure_ascii`.
    assert_eq!(with("tojson(2, 2)"), lines.replace('\u{E9}', "\\u00e9"));
    assert_eq!(with("tojson(ensure_ascii=False)"), with("tojson"));
    assert_eq!(with("tojson(ensure_ascii=True)"), with("tojson").replace('\u{E9}', "\\u00e9"));
}

#[test]
fn tool_calls_are_converted_for_templates() {
    let template = "{% for message in messages %}{% if message.tool_calls %}\
{% for call in message.tool_calls %}{{ call.function.name }}{% for name, value in call.function.arguments.items() %} {{ name }}={{ value }}{% endfor %};{% endfor %}\
{% elif message.content is none %}none;{% else %}{{ message.content }};{% endif %}{% endfor %}{{ tools is none }}";
    let messages = json!([
        {"role": "assistant", "content": null, "tool_calls": [
            {"function": {"name": "add", "arguments": "{\"y\": 1, \"x\": \"2\"}"}},
            {"function": {"name": "sub", "arguments": {"z": 3}}},
        ]},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": null},
        {"role": "assistant"},
    ]);
    assert_eq!(render(template, messages), "add y=1 x=2;sub z=3;a\nb;none;none;True");
}

#[test]
fn dates_and_generation_tags_are_supported() {
    let year = render("{{ strftime_now('%Y') }}", json!([]));
    assert!(year.len() == 4 && year.parse::<u32>().is_ok_and(|year| year >= 2024), "{year}");
    let template = ChatTemplate::new("{{ strftime_now('%!') }}", None, "", "").unwrap();
    assert!(
        format!("{:#}", template.prompt(&json!([]), None, None).unwrap_err())
            .contains("not a valid date format")
    );
    let tagged = "a {%- generation -%} b {% endgeneration %}c{% if true %}d{% endif %}";
    assert_eq!(render(tagged, json!([])), "ab cd");
}
