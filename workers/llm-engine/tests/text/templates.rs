//! Chat templates as jinja2 and Transformers render them, and messages adapted to what a template supports.
use llm_engine::text::{ChatTemplate, Conversation, builtin_templates};
use serde_json::{Map, Value, json};

/// Renders an expression with a value `x`, without changes to the inputs.
fn raw(template: &str, x: &Value) -> anyhow::Result<String> {
    let variables = Map::from_iter([("x".to_owned(), x.clone())]);
    let template = ChatTemplate::new(template, None, "<s>", "</s>")?;
    template.render(&Conversation { variables: Some(&variables), ..Conversation::default() })
}

fn prompt(template: &str, messages: &Value) -> String {
    ChatTemplate::new(template, None, "<s>", "</s>").unwrap().prompt(messages, None, None).unwrap()
}

#[test]
fn values_print_as_in_python() {
    let x = json!({"a": ["b'", "c\"'\n\\", "\u{E9}\u{200B}"], "n": null, "t": true, "f": 1e16, "i": -3, "s": 0.00001, "h": 2.5});
    let printed = "{'a': [\"b'\", 'c\"\\'\\n\\\\', '\u{E9}\\u200b'], 'n': None, 't': True, 'f': 1e+16, 'i': -3, \
                   's': 1e-05, 'h': 2.5}";
    for template in ["{{ x }}", "{{ x | string }}", "{{ '' ~ x }}", "{{ [x] | join }}", "{{ x | trim }}"] {
        assert_eq!(raw(template, &x).unwrap(), printed, "{template}");
    }
    for (template, printed) in [
        ("{{ ['a', none, 1.0] }}", "['a', None, 1.0]"),
        ("{{ x.a[:1] + [2] }}", "[\"b'\", 2]"),
        ("{{ {'k': x.t} }}", "{'k': True}"),
        ("{{ y }}.", "."),
    ] {
        assert_eq!(raw(template, &x).unwrap(), printed, "{template}");
    }
}

#[test]
fn tests_and_filters_follow_jinja2() {
    let x = json!({"none": null, "list": [3, 1], "text": "a b", "items": {"b": 1}});
    for (expression, printed) in [
        ("tools is none and documents is none and tools is not iterable", "True"),
        ("x.text is sequence and x.list is sequence and x.items is mapping", "True"),
        ("x.none is iterable or x.none is sequence", "False"),
        ("y is iterable", "True"),
        ("true is number", "True"),
        ("y | length", "0"),
        ("'3' | int + 'z' | int + 2.7 | int", "5"),
        ("\"they're here-now\" | title", "They're Here-Now"),
        ("x.list | map('string') | join('+')", "3+1"),
        ("[{'n': 'a'}, {'n': 'b'}] | join(', ', attribute='n')", "a, b"),
        ("'yes' if x.list | select('equalto', 9) else 'no'", "yes"),
        ("x['items'] | tojson", "{\"b\": 1}"),
        ("x.text.partition(' ')", "['a', ' ', 'b']"),
        ("'a.b.c'.rsplit('.', 1)", "['a.b', 'c']"),
        ("'\u{E9}x'.find('x')", "1"),
        ("''.isdigit()", "False"),
        ("'prefix-a'.removeprefix('prefix-')", "a"),
        ("[1e100, 1.5, 100000000.0] | tojson", "[1e+100, 1.5, 100000000.0]"),
    ] {
        assert_eq!(raw(&format!("{{{{ {expression} }}}}"), &x).unwrap(), printed, "{expression}");
    }
    for refused in [
        "{% for a in none %}{% endfor %}",
        "{% for a in tools %}{% endfor %}",
        "{% for a in x.list if a %}{% for b in 3 %}{% endfor %}{% endfor %}",
        "{{ x.none.split() }}",
        "{{ y.z }}",
        "{{ y | tojson }}",
        "{{ x.list | map('string') | tojson }}",
        "{{ x.list | select | length }}",
        "{{ 'a' + 1 }}",
        "{{ 'a' + x.list }}",
        "{{ x.list.append(1) }}",
        // Minijinja panics here.
        "{% for a in [][::-1] %}{% endfor %}",
    ] {
        assert!(raw(refused, &x).is_err(), "{refused}");
    }
}

#[test]
fn changes_to_the_source_respect_strings_comments_and_raw_blocks() {
    let x = json!([[1, "a"], [2, "b"]]);
    for (template, printed) in [
        ("{% for n, s in x if n != 1 -%} {{ n ~ s }} {%- endfor %}", "2b"),
        ("{%- for c in ' if ' -%}[{{ c }}]{%- endfor -%}", "[ ][i][f][ ]"),
        ("{% for c in (x if x else y) %}{{ loop.index }}{% endfor %}", "12"),
        ("{# {% for a in none %} #}{{ '{% for a in none %}' }}", "{% for a in none %}"),
        ("{% raw %}{% for a in none %}{% endraw %}.", "{% for a in none %}."),
        ("{% for a in [1, 2, 3] %}{% if a == 2 %}{% continue %}{% endif %}{{ a }}{% endfor %}", "13"),
        ("{% for a in y %}{{ a }}{% else %}empty{% endfor %}", "empty"),
        ("{{ {'a': {'b': '}}'}}.a.b }}{% generation %}\nc{% endgeneration %}\nd", "}}cd"),
    ] {
        assert_eq!(raw(template, &x).unwrap(), printed, "{template}");
    }
}

const REFUSES_SYSTEM: &str = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}\
                              {{ m.role[0] }}:{{ m.content }};{% endfor %}";
const DROPS_SYSTEM: &str = "{% for m in messages %}{% if m.role != 'system' %}{{ m.role[0] }}:{{ m.content }};{% endif %}{% endfor %}";
const LEADING_SYSTEM: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
                              {{ raise_exception('no') }}{% endif %}{{ m.role[0] }}:{{ m.content }};{% endfor %}";

#[test]
fn unsupported_system_messages_are_merged_into_a_neighbouring_turn() {
    let [system, more] = ["S", "T"].map(|text| json!({"role": "system", "content": text}));
    let [user, answer] =
        [json!({"role": "user", "content": "u"}), json!({"role": "assistant", "content": "a"})];
    for template in [REFUSES_SYSTEM, DROPS_SYSTEM] {
        for (messages, expected) in [
            (json!([system, user]), "u:S\n\nu;"),
            (json!([system, more, user, answer]), "u:S\n\nT\n\nu;a:a;"),
            (json!([user, answer, more, user]), "u:u;a:a;u:T\n\nu;"),
            (json!([user, more]), "u:u\n\nT;"),
            (json!([user, more, answer, user]), "u:u\n\nT;a:a;u:u;"),
            (json!([user, answer, more]), "u:u;a:a;u:T;"),
            (json!([system]), "u:S;"),
            (json!([user, answer]), "u:u;a:a;"),
        ] {
            assert_eq!(prompt(template, &messages), expected, "{messages}");
        }
    }
    for (messages, expected) in [
        (json!([system, user]), "s:S;u:u;"),
        (json!([system, more, user]), "s:S\n\nT;u:u;"),
        (json!([system, user, answer, more, user]), "s:S;u:u;a:a;u:T\n\nu;"),
        // As Claude Code sends them.
        (json!([system, user, more, answer]), "s:S;u:u\n\nT;a:a;"),
    ] {
        assert_eq!(prompt(LEADING_SYSTEM, &messages), expected, "{messages}");
    }
    // Exactly what the caller passes is rendered without changes.
    let template = ChatTemplate::new(REFUSES_SYSTEM, None, "", "").unwrap();
    assert!(template.render(&Conversation { messages: &[system], ..Conversation::default() }).is_err());
}

#[test]
fn content_and_arguments_have_the_form_that_the_template_requires() {
    let user = json!({"role": "user", "content": "u"});
    let in_parts =
        "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}";
    assert_eq!(prompt(in_parts, &json!([user])), "u");
    let call = |arguments: Value| {
        let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}});
        json!([user, {"role": "assistant", "content": "", "tool_calls": [call]}])
    };
    let template = |arguments: &str| {
        format!(
            "{{% for m in messages %}}{{{{ m.content }}}}{{% for call in m.tool_calls %}}{{{{ 'f' + {arguments} }}}}\
             {{% endfor %}}{{% endfor %}}"
        )
    };
    for (arguments, expected) in [
        ("call.function.arguments | tojson", "uf{\"x\": 1}"),
        ("call.function.arguments", "uf{\"x\":1}"),
        ("call.function.arguments | string", "uf{\"x\":1}"),
    ] {
        for given in [json!({"x": 1}), json!("{\"x\":1}")] {
            assert_eq!(prompt(&template(arguments), &call(given)), expected, "{arguments}");
        }
    }
}

/// A template for tools that rejects conversations without them.
#[test]
fn templates_for_tools_are_examined_with_a_tool() {
    let tool_use =
        format!("{{% for tool in tools %}}{{{{ tool.function.name }}}};{{% endfor %}}{REFUSES_SYSTEM}");
    let template = ChatTemplate::new("", Some(&tool_use), "", "").unwrap();
    let messages = json!([{"role": "system", "content": "S"}, {"role": "user", "content": "u"}]);
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    assert_eq!(template.prompt(&messages, Some(&tools), None).unwrap(), "f;u:S\n\nu;");
    assert_eq!(template.prompt(&messages, None, None).unwrap(), "");
}

#[test]
fn variables_reach_the_template() {
    let template = ChatTemplate::new("{{ enable_thinking }}{{ documents[0].text }}", None, "", "").unwrap();
    let messages = json!([{"role": "user", "content": "u"}]);
    let variables = json!({"enable_thinking": false, "documents": [{"text": "d"}]});
    assert_eq!(template.prompt(&messages, None, variables.as_object()).unwrap(), "Falsed");
    let fixed = ChatTemplate::new_at_time("{{ strftime_now('%Y-%m') }}", None, ["", ""], Some(1_785_000_000))
        .unwrap();
    assert_eq!(fixed.prompt(&messages, None, None).unwrap(), "2026-07");
}

#[test]
fn built_in_templates_render_all_turns() {
    let messages = json!([
        {"role": "system", "content": "Rule."}, {"role": "user", "content": "Question?"},
        {"role": "assistant", "content": "Answer."}, {"role": "user", "content": "More?"},
    ]);
    for name in builtin_templates::names() {
        let written = prompt(builtin_templates::named(name).unwrap(), &messages);
        let positions = ["Rule.", "Question?", "Answer.", "More?"].map(|text| written.find(text));
        assert!(positions.iter().all(Option::is_some) && positions.is_sorted(), "{name}: {written}");
    }
    let llama2 = prompt(builtin_templates::named("llama2").unwrap(), &messages);
    let expected = "[INST] <<SYS>>\nRule.\n<</SYS>>\n\nQuestion? [/INST] Answer. </s><s>[INST] More? [/INST]";
    assert_eq!(llama2, expected);
    assert!(builtin_templates::named("none").is_none());
}

/// Lists with pictures stay lists, in which merged system messages become parts.
#[test]
fn content_with_pictures_stays_a_list() {
    let picture = json!({"type": "image"});
    let text = |text: &str| json!({"type": "text", "text": text});
    let user = json!({"role": "user", "content": [picture, text("a"), text("b")]});
    let system = json!({"role": "system", "content": "S"});
    let body = "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'image' %}#\
                {% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %};{% endfor %}";
    let shows = format!("{{% for m in messages %}}{body}");
    let drops = format!("{{% for m in messages if m.role != 'system' %}}{body}");
    for (template, messages, expected) in [
        (&shows, json!([system, user]), "S;#ab;"),
        (&drops, json!([system, user]), "S\n\n#ab;"),
        (&drops, json!([user, system]), "#ab\n\nS;"),
    ] {
        assert_eq!(prompt(template, &messages), expected);
    }
    let sound = json!([{"role": "user", "content": [picture, {"type": "audio"}]}]);
    let template = ChatTemplate::new(&shows, None, "", "").unwrap();
    assert!(template.prompt(&sound, None, None).unwrap_err().to_string().contains("audio"));
}
