//! Random texts that regular expressions, choices, GBNF, Lark and structural tags allow.
use llm_engine::request::Constraint;
use llm_engine::text::TextCodec;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::grammars::{allowed, write_some_tokens};
use crate::tokenizers_built::{END, bytes, pieces, text};

/// Generates a random text, with tokens of `alphabet` only where that is possible. Ends where the grammar may, after a
/// random length.
fn random_text(text: &TextCodec, constraint: &Constraint, alphabet: &str, seed: u64) -> String {
    let mut random = StdRng::seed_from_u64(seed);
    let mut grammar = text.grammar(constraint).unwrap_or_else(|error| panic!("{constraint:?}: {error:#}"));
    let end = text.encode(END, false).unwrap().pop().unwrap();
    let (least, mut tokens) = (random.random_range(0..30), Vec::new());
    while !grammar.finished() {
        let choices = allowed(&mut grammar, text);
        assert!(!choices.is_empty(), "no token follows {:?}", text.decode_after(&tokens));
        if choices.contains(&end) && tokens.len() >= least {
            break;
        }
        let known = |token: &u32| text.token_text(*token).chars().all(|sign| alphabet.contains(sign));
        let usual: Vec<u32> = choices.iter().copied().filter(known).collect();
        let from = if usual.is_empty() { &choices } else { &usual };
        let from: Vec<u32> = from.iter().copied().filter(|token| *token != end || from.len() == 1).collect();
        let token = from[random.random_range(0..from.len())];
        if token == end {
            break;
        }
        grammar.accept(token).unwrap();
        tokens.push(token);
        assert!(tokens.len() < 2000, "{:?} does not end", text.decode_after(&tokens));
    }
    text.decode_after(&tokens).unwrap()
}

fn check(constraint: &Constraint, alphabet: &str, fits: impl Fn(&str) -> bool) {
    for text in [text(bytes()), text(pieces())] {
        let texts: Vec<String> = (0..12).map(|seed| random_text(&text, constraint, alphabet, seed)).collect();
        for text in &texts {
            assert!(fits(text), "{constraint:?} allows {text:?}");
        }
        assert!(texts.iter().any(|text| *text != texts[0]), "{constraint:?} allows only {:?}", texts[0]);
    }
}

/// Checks which whole texts a grammar accepts.
fn accepts(constraint: &Constraint, written: &str) -> bool {
    let text = text(bytes());
    let end = text.encode(END, false).unwrap().pop().unwrap();
    let mut grammar = text.grammar(constraint).unwrap_or_else(|error| panic!("{constraint:?}: {error:#}"));
    for byte in written.bytes() {
        // A token of one byte.
        let token = (0..text.vocabulary() as u32).find(|token| text.token_bytes(*token) == Some(&[byte][..]));
        let token = token.unwrap();
        if grammar.finished() || !allowed(&mut grammar, &text).contains(&token) {
            return false;
        }
        grammar.accept(token).unwrap();
    }
    grammar.finished() || allowed(&mut grammar, &text).contains(&end)
}

fn digits(text: &str, count: usize) -> bool {
    text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[test]
fn texts_match_regular_expressions() {
    let date = Constraint::Regex(r"[0-9]{4}-[0-9]{2}(/[0-9]{2})?".into());
    check(&date, "0123456789-/", |text| {
        let Some((year, rest)) = text.split_once('-') else { return false };
        let (month, day) = rest.split_once('/').unwrap_or((rest, "00"));
        digits(year, 4) && digits(month, 2) && digits(day, 2)
    });
    let words = Constraint::Regex(r"(he|ll)+\.".into());
    check(&words, "hel.", |text| {
        text.strip_suffix('.').is_some_and(|text| {
            !text.is_empty() && text.as_bytes().chunks(2).all(|pair| pair == b"he" || pair == b"ll")
        })
    });
    assert!(accepts(&Constraint::Regex("a/b\\d".into()), "a/b7"));
    assert!(!accepts(&Constraint::Regex("a|bc".into()), "b"));
}

#[test]
fn texts_are_one_of_the_choices() {
    let choices = ["he", "hell", "true", "a/b (c)\n\"d\"", "\u{20AC}"].map(str::to_owned);
    check(&Constraint::Choice(choices.to_vec()), "helltrua", |text| {
        choices.iter().any(|choice| choice == text)
    });
    for choice in &choices {
        assert!(accepts(&Constraint::Choice(choices.to_vec()), choice), "{choice}");
    }
    assert!(!accepts(&Constraint::Choice(choices.to_vec()), "hel"));
}

/// llama.cpp's example grammar of arithmetic, which is recursive.
const ARITHMETIC: &str = r#"
root  ::= (expr "=" ws term "\n")+   # lines
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]{0,2}
"#;

const JSON: &str = r#"root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [1-9] [0-9]{0,3})? ws

# Optional space
ws ::= | " " | "\n" [ \t]{0,20}
"#;

/// Reads an expression of [`ARITHMETIC`] and returns the rest.
fn expression(text: &str) -> Option<&str> {
    let mut rest = term(text)?;
    while let Some(next) = rest.strip_prefix(['-', '+', '*', '/']) {
        rest = term(next)?;
    }
    Some(rest)
}

fn term(text: &str) -> Option<&str> {
    let rest = match text.strip_prefix('(') {
        Some(inner) => expression(inner.trim_start_matches([' ', '\t', '\n']))?.strip_prefix(')')?,
        None => {
            let first = text.chars().next()?;
            let is_number = first.is_ascii_digit();
            let more = |sign: char| match is_number {
                true => sign.is_ascii_digit(),
                false => sign.is_ascii_lowercase() || sign.is_ascii_digit() || sign == '_',
            };
            let length = text.find(|sign| !more(sign)).unwrap_or(text.len());
            (is_number || first.is_ascii_lowercase()).then(|| &text[length..])?
        }
    };
    Some(rest.trim_start_matches([' ', '\t', '\n']))
}

#[test]
fn texts_match_gbnf_grammars() {
    check(&Constraint::Gbnf(ARITHMETIC.into()), "ab12+*-()=\n", |text| {
        let mut rest = text;
        while !rest.is_empty() {
            // White space of the last term may include the line's end.
            let line =
                expression(rest).and_then(|rest| rest.strip_prefix('=')).map(str::trim_start).and_then(term);
            let Some(next) = line else { return false };
            rest = next.trim_start_matches('\n');
        }
        text.ends_with('\n')
    });
    let value = |text: &str| serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object());
    check(&Constraint::Gbnf(JSON.into()), "{}[]\":,a1 ", value);
    for (grammar, good, bad) in [
        // Regular rules are read character by character.
        ("root ::= [a-z]* \"abc\"", vec!["abc", "abcabc", "zabc"], vec!["", "ab", "abcd"]),
        (
            "root ::= a a?\na ::= b{2,3} # b\nb ::= \"x\" | \"y\"",
            vec!["xx", "xyx", "xyxyxy"],
            vec!["x", "xyxyxyx"],
        ),
        ("root ::= \"(\" root \")\" | \"\"", vec!["", "()", "((()))"], vec!["(", "())"]),
        ("root ::= root \"x\" | \"y\"", vec!["y", "yxx"], vec!["x", "yxy"]),
        ("root ::= (\"a\" |\n \"b\")\n  \nrest ::= \"c\"", vec!["a", "b"], vec!["", "c"]),
        ("root ::= [^a-c\\]\\x41\\n]+ | . \"\\u0041\"", vec!["xyz", "aA", "\nA"], vec!["a", "]", "\n"]),
        ("root ::= \"a\"{2} \"b\"{,2} \"c\"{1,}", vec!["aac", "aabbcc"], vec!["ac", "aabbbc", "aab"]),
        ("root ::= x x\nx ::= \"a\" x \"b\" | \"c\"{0}", vec!["", "ab", "aabb", "abab"], vec!["a", "ba"]),
    ] {
        let constraint = Constraint::Gbnf(grammar.into());
        good.iter().for_each(|text| assert!(accepts(&constraint, text), "{grammar}: {text:?}"));
        bad.iter().for_each(|text| assert!(!accepts(&constraint, text), "{grammar}: {text:?}"));
    }
}

#[test]
fn texts_match_lark_grammars() {
    let lark = "start: pair (\",\" pair)*\npair: NAME \"=\" (NUMBER | list)\nlist: \"[\" pair \"]\"\n\
        NAME: /[a-c]+/\nNUMBER: /[0-9]{1,3}/";
    fn pair(text: &str) -> Option<&str> {
        let (name, rest) = text.split_once('=')?;
        let named = !name.is_empty() && name.bytes().all(|byte| (b'a'..=b'c').contains(&byte));
        match rest.strip_prefix('[') {
            Some(inner) if named => pair(inner)?.strip_prefix(']'),
            _ => {
                let length = rest.find(|sign: char| !sign.is_ascii_digit()).unwrap_or(rest.len());
                (named && (1..=3).contains(&length)).then(|| &rest[length..])
            }
        }
    }
    check(&Constraint::Lark(lark.into()), "abc=12[],", |text| {
        let mut rest = Some(text);
        while let Some(next) = rest.and_then(pair) {
            match next.strip_prefix(',') {
                Some(more) => rest = Some(more),
                None => return next.is_empty(),
            }
        }
        false
    });
}

fn calls(text: &str, begin: &str, end: &str) -> Option<Vec<Value>> {
    let mut calls = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(begin) {
        let (value, after) = rest[at + begin.len()..].split_once(end)?;
        calls.push(serde_json::from_str(value).ok()?);
        rest = after;
    }
    Some(calls)
}

#[test]
fn texts_follow_structural_tags() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false});
    let structures = json!({
        "structures": [
            {"begin": "<f>", "schema": schema, "end": "</f>"},
            {"begin": "<g>", "schema": {"const": 7}, "end": "</g>"},
        ],
        "triggers": ["<"],
    });
    let fits = |text: &str| {
        let (Some(f), Some(g)) = (calls(text, "<f>", "</f>"), calls(text, "<g>", "</g>")) else {
            return false;
        };
        text.matches('<').count() == 2 * (f.len() + g.len())
            && f.iter().all(|value| value["a"].is_boolean())
            && g.iter().all(|value| *value == 7)
    };
    let constraint = Constraint::StructuralTag(structures);
    check(&constraint, "ab<fg>/{}\":7true", fits);
    for (text, is_good) in [
        ("plain text\n", true),
        ("", true),
        ("see <g>7</g> and <f>{\"a\":true}</f>.", true),
        ("see <g>8</g>", false),
        ("a < b", false),
        ("<f>{\"a\":true}", false),
    ] {
        assert_eq!(accepts(&constraint, text), is_good, "{text}");
    }
    let tag = |begin: &str, content: Value| json!({"type": "tag", "begin": begin, "content": content, "end": "</x>"});
    let formats = [
        (
            json!({"type": "sequence", "elements": [{"type": "const_string", "value": "A: "},
                {"type": "or", "elements": [{"type": "regex", "pattern": "[0-9]+/"}, {"type": "json_schema", "json_schema": {"type": "null"}}]}]}),
            vec!["A: 12/", "A: null"],
            vec!["A: ", "A: 1", "null"],
        ),
        (
            tag("<x>", json!({"type": "any_text"})),
            vec!["<x>a < b</x>", "<x></x>"],
            vec!["<x>", "a<x></x>", "<x></x>."],
        ),
        (
            json!({"type": "triggered_tags", "triggers": ["<x"], "at_least_one": true, "stop_after_first": true,
                "tags": [tag("<x=1>", json!({"type": "regex", "pattern": "b+"})), tag("<x>", json!({"type": "any_text"}))]}),
            vec!["t<x=1>bb</x>", "<x>y</x>"],
            vec!["", "t", "<x=1></x>", "<x>y</x>z"],
        ),
        (
            json!({"type": "tags_with_separator", "separator": ", ", "tags": [tag("<x>", json!({"type": "const_string", "value": "k"}))]}),
            vec!["", "<x>k</x>", "<x>k</x>, <x>k</x>"],
            vec!["<x>k</x>,", "k"],
        ),
    ];
    for (format, good, bad) in formats {
        let constraint = Constraint::StructuralTag(json!({"type": "structural_tag", "format": format}));
        good.iter().for_each(|text| assert!(accepts(&constraint, text), "{constraint:?}: {text:?}"));
        bad.iter().for_each(|text| assert!(!accepts(&constraint, text), "{constraint:?}: {text:?}"));
    }
}

#[test]
fn invalid_grammars_are_rejected_with_a_reason() {
    let text = text(bytes());
    let gbnf = |text: &str| Constraint::Gbnf(text.into());
    let tag = Constraint::StructuralTag;
    for (constraint, wanted) in [
        (Constraint::Regex(String::new()), "empty"),
        (Constraint::Regex("(".into()), "regular expression cannot be used"),
        (Constraint::Regex("(?=a)b".into()), "regular expression cannot be used"),
        (Constraint::Choice(Vec::new()), "empty"),
        (Constraint::Choice(vec!["a".repeat(1 << 20)]), "1048576 bytes"),
        (Constraint::Lark("begin: \"a\"".into()), "start"),
        (Constraint::Lark("start: other".into()), "other"),
        (Constraint::Lark("start: <|end|>".into()), "Lark grammar cannot be used"),
        (Constraint::Lark("a".repeat(100_000)), "100000 bytes"),
        (Constraint::Lark("(".repeat(5_000)), "5000 characters"),
        (Constraint::Lark(format!("start: \"%json\" %json {{\"enum\": [{}]}}", i64::MIN)), "above -2^63"),
        (tag(json!({"format": {"type": "json_schema", "json_schema": {"const": i64::MIN}}})), "above -2^63"),
        (gbnf(""), "root"),
        (gbnf("begin ::= \"a\""), "root"),
        (gbnf("root ::= \"a\" other"), "`other` is not defined"),
        (gbnf("root ::= \"a\"\nroot2 := \"b\""), "line 2"),
        (gbnf("root ::= [a"), "expected ]"),
        (gbnf("root ::= [z-a]"), "empty"),
        (gbnf("root ::= \"\\q\""), "escape"),
        (gbnf("root ::= \"a\"{3,2}"), "empty"),
        (gbnf("root ::= \"a\"{99999999}"), "range"),
        (gbnf("root ::= <tool>"), "not supported"),
        (gbnf(&format!("root ::= {}", "(".repeat(100))), "deeper"),
        (gbnf("root ::= \"a\")"), "new line"),
        (gbnf("root ::= ("), "expected )"),
        (tag(json!({"structures": [], "triggers": ["a"]})), "tags"),
        (
            tag(json!({"structures": [{"begin": "<a>", "schema": {}, "end": "x"}], "triggers": ["b"]})),
            "trigger",
        ),
        (
            tag(json!({"structures": [{"begin": "<a>", "end": "x"}], "triggers": ["<"]})),
            "`schema` is missing",
        ),
        (tag(json!({"format": {"type": "qwen_xml_parameter"}})), "not supported"),
        (tag(json!({"format": {}})), "`type` is missing"),
    ] {
        let short: String = format!("{constraint:?}").chars().take(80).collect();
        match text.grammar(&constraint) {
            Ok(_) => panic!("{short} is accepted"),
            Err(error) => {
                let message = format!("{error:#}");
                assert!(message.contains(wanted), "{short}: {message}");
            }
        }
    }
}

/// Grammars that would take unlimited time, memory or stack fail with an error, or stay bounded.
#[test]
fn hostile_grammars_are_bounded() {
    let text = text(bytes());
    let chain = |links: usize| {
        let rule = |at: usize| format!("r{at} ::= \"(\" r{} \")\"\n", at + 1);
        format!("root ::= r0\n{}r{links} ::= root | \"x\"", (0..links).map(rule).collect::<String>())
    };
    let doubled: String = (0..60).map(|at| format!("r{at} ::= r{} r{}\n", at + 1, at + 1)).collect();
    let hostile = [
        Constraint::Regex("(a|b)*a(a|b){40}".into()),
        Constraint::Regex("((a{1,1000}){1,1000}){1,1000}".into()),
        Constraint::Regex(format!("{}a{}", "(".repeat(1_900), ")".repeat(1_900))),
        Constraint::Gbnf(chain(600)),
        Constraint::Gbnf(format!("root ::= r0\n{doubled}r60 ::= \"a\"*")),
        Constraint::Gbnf("root ::= root root | \"a\" | \"\"".into()),
        Constraint::Gbnf("root ::= ((root{1,1000}){1,1000}){1,1000} | \"a\"".into()),
        Constraint::Lark("start: start start | \"a\" | ".into()),
        Constraint::Lark(format!("start: {}\"a\"{}", "(".repeat(900), ")".repeat(900))),
    ];
    for constraint in hostile {
        write_some_tokens(&text, &constraint);
    }
}
