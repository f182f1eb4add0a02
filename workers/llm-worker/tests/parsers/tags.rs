//! Calls in XML tags.
use crate::checked::{Setup, call, check_all, content, cut, reasoning};

#[test]
fn functionary() {
    check_all(
        Setup::of("functionary", "none"),
        &[
            ("<function=add>{\"a\": 1}</function>", &[call("add", "{\"a\": 1}")]),
            (
                "Hi <function=now>{}</function>\n<function=now>{}</function>",
                &[content("Hi"), call("now", "{}"), call("now", "{}")],
            ),
            ("<function=sub>{}</function>", &[content("<function=sub>{}</function>")]),
            ("<function=add>x</function>", &[content("<function=add>x</function>")]),
            ("<function=add", &[content("<function=add")]),
            ("<function=add>", &[content("<function=add>")]),
        ],
    );
}

#[test]
fn qwen_coder() {
    let of = |inner: &str| format!("<tool_call>\n{inner}\n</tool_call>");
    let now = of("<function=now>\n</function>");
    let add =
        of("<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n-2\n</parameter>\n</function>");
    let say = of("<function=say>\n<parameter=text>\n<b> \"x\"\n\n  y</b>\n\n</parameter>\n</function>");
    let set = of(
        "<function=set>\n<parameter=flag>True</parameter><parameter=item>{\"k\": [1, \"2\"]}</parameter>\
        <parameter=name>\nnull\n</parameter><parameter=unit>C</parameter><parameter=value>2 dollars</parameter></function>",
    );
    let again = of("<function=set>\n<parameter=name>42</parameter><parameter=value>{\"a\"</parameter>\
        <parameter=any>[1]</parameter><parameter=new>7</parameter></function>");
    let two = format!("I do.\n{now}\n{add}\n");
    let one_mark = format!("{}\n{add}", now.trim_start_matches("<tool_call>\n"));
    let added = "{\"a\": 1, \"b\": -2}";
    check_all(
        Setup::of("qwen3_coder", "none"),
        &[
            (&now, &[call("now", "{}")]),
            (&add, &[call("add", added)]),
            (&say, &[call("say", r#"{"text": "<b> \"x\"\n\n  y</b>\n"}"#)]),
            (
                &set,
                &[call(
                    "set",
                    r#"{"flag": true, "item": {"k": [1, "2"]}, "name": null, "unit": "C", "value": "2 dollars"}"#,
                )],
            ),
            (&again, &[call("set", r#"{"name": "42", "value": "{\"a\"", "any": [1], "new": "7"}"#)]),
            (&two, &[content("I do."), call("now", "{}"), call("add", added)]),
            // The first mark may be missing, and the end tags.
            (&one_mark, &[call("now", "{}"), call("add", added)]),
            ("<tool_call><function=add><parameter=a>1</parameter></tool_call>", &[call("add", "{\"a\": 1}")]),
            ("<function=say><parameter=text>a</param", &[cut("say", "{\"text\": \"a</param")]),
            ("<function=add><parameter=a>1", &[cut("add", "")]),
            ("<function=add><parameter=a>1</parameter><para", &[cut("add", "{\"a\": 1")]),
            ("<function=sub><parameter=text>a", &[content("<function=sub><parameter=text>a")]),
            ("Use <parameter=a> in <function=f>.", &[content("Use <parameter=a> in <function=f>.")]),
        ],
    );
}

#[test]
fn minimax() {
    let of = |inner: &str| format!("<minimax:tool_call>\n{inner}\n</minimax:tool_call>");
    let add = "<invoke name=\"add\">\n<parameter name=\"a\">1</parameter>\n<parameter name=\"b\">-2</parameter>\n</invoke>";
    let say = "<invoke name=\"say\">\n<parameter name=\"text\">\n\"x\" <b>\n</parameter>\n</invoke>";
    let now = "<invoke name=\"now\">\n</invoke>";
    let added = [call("add", "{\"a\": 1, \"b\": -2}")];
    // MiniMax-M1.
    let list = "<tool_calls>\n{\"name\": \"now\", \"arguments\": {}}\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": -2}}\n</tool_calls>";
    check_all(
        Setup::of("minimax", "think"),
        &[
            (&of(add), &added),
            (
                &format!("<think>\nwhy</think>\n\nI do.\n{}", of(&format!("{now}\n{say}"))),
                &[
                    reasoning("why"),
                    content("I do."),
                    call("now", "{}"),
                    // Line breaks belong to the value.
                    call("say", r#"{"text": "\n\"x\" <b>\n"}"#),
                ],
            ),
            (
                "<minimax:tool_call><invoke name=\"set\"><parameter name=\"item\">{\"k\": [1]}</parameter><parameter name=\"name\">null</parameter></invoke></minimax:tool_call>",
                &[call("set", r#"{"item": {"k": [1]}, "name": null}"#)],
            ),
            (list, &[call("now", "{}"), added[0].clone()]),
            (&of("<invoke name=\"sub\">\n</invoke>"), &[content(&of("<invoke name=\"sub\">\n</invoke>"))]),
            ("<minimax:tool_call>\n<invoke name=\"ad", &[content("<minimax:tool_call>\n<invoke name=\"ad")]),
            (
                "<minimax:tool_call>\n<invoke name=\"say\">\n<parameter name=\"text\">a\nb",
                &[cut("say", "{\"text\": \"a\\nb")],
            ),
        ],
    );
}

#[test]
fn deepseek_v32() {
    let of = |inner: &str, block: &str| format!("<｜DSML｜{block}>\n{inner}\n</｜DSML｜{block}>");
    let invoke =
        |name: &str, inner: &str| format!("<｜DSML｜invoke name=\"{name}\">\n{inner}\n</｜DSML｜invoke>");
    let parameter = |name: &str, string: bool, value: &str| {
        format!("<｜DSML｜parameter name=\"{name}\" string=\"{string}\">{value}</｜DSML｜parameter>")
    };
    let add = invoke("add", &[parameter("a", false, "1"), parameter("b", false, "2")].join("\n"));
    let now = invoke("now", "");
    let set = [
        parameter("any", true, "7"),
        parameter("value", true, "8"),
        parameter("flag", true, "true"),
        parameter("item", false, "{\"k\": \"v\"}"),
        parameter("new", false, "9"),
        parameter("other", true, "9"),
    ];
    let set = invoke("set", &set.join("\n"));
    let added = call("add", "{\"a\": 1, \"b\": 2}");
    check_all(
        Setup { prompt: "<｜Assistant｜><think>", ..Setup::of("deepseek_v32", "think") },
        &[
            (
                &format!("why</think>I look.\n\n{}", of(&format!("{add}\n{now}"), "function_calls")),
                &[reasoning("why"), content("I look."), added.clone(), call("now", "{}")],
            ),
            // DeepSeek-V4.
            (&format!("</think>{}", of(&add, "tool_calls")), &[added]),
            // The declaration decides where the schema allows both.
            (
                &format!("</think>{}", of(&set, "function_calls")),
                &[call(
                    "set",
                    r#"{"any": "7", "value": "8", "flag": true, "item": {"k": "v"}, "new": 9, "other": "9"}"#,
                )],
            ),
            ("</think>A <｜DSML｜ b", &[content("A <｜DSML｜ b")]),
        ],
    );
}

#[test]
fn glm() {
    let add = "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n<arg_value>-2</arg_value>\n</tool_call>";
    let say = "<tool_call>say<arg_key>text</arg_key><arg_value> a\n\"b\" </c>\n</arg_value></tool_call>";
    let added = call("add", "{\"a\": 1, \"b\": -2}");
    let said = call("say", r#"{"text": " a\n\"b\" </c>\n"}"#);
    check_all(
        Setup::of("glm4", "think"),
        &[
            (add, std::slice::from_ref(&added)),
            (
                &format!("\n<think>I use <tool_call>.</think>\nWell.\n{add}\n{say}"),
                &[reasoning("I use <tool_call>."), content("Well."), added.clone(), said],
            ),
            ("<tool_call>now\n</tool_call>\n", &[call("now", "{}")]),
            ("<tool_call>now</tool_call> x", &[call("now", "{}"), content("x")]),
            (
                "<tool_call>set\n<arg_key>flag</arg_key>\n<arg_value>true</arg_value>\n<arg_key>any</arg_key>\n<arg_value>[1, \"2\"]</arg_value>\n<arg_key>unit</arg_key>\n<arg_value>C</arg_value>\n</tool_call>",
                &[call("set", r#"{"flag": true, "any": [1, "2"], "unit": "C"}"#)],
            ),
            ("<tool_call>sub\n</tool_call>", &[content("<tool_call>sub\n</tool_call>")]),
            ("<tool_call>add\n<arg", &[content("<tool_call>add\n<arg")]),
            ("<tool_call>say<arg_key>text</arg_key><arg_value>a</arg", &[cut("say", "{\"text\": \"a</arg")]),
            ("<tool_call>add<arg_key>a</arg_key><arg_value>1", &[cut("add", "")]),
        ],
    );
}
