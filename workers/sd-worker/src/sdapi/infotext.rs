//! Description of an image in the text format of A1111.
use std::collections::BTreeMap;

/// Generation parameters of an image.
#[derive(Clone, Debug)]
pub struct Infotext<'a> {
    /// Prompt, with tags of LoRA files.
    pub prompt: &'a str,
    /// Negative prompt.
    pub negative: &'a str,
    /// Names and values of the settings, which form the last line.
    pub settings: &'a [(&'static str, String)],
}

impl Infotext<'_> {
    /// Returns the text for the image with this seed.
    pub fn text(&self, seed: u64) -> String {
        let mut lines = self.prompt.to_owned();
        if !self.negative.is_empty() {
            lines.push_str(&format!("\nNegative prompt: {}", self.negative));
        }
        let settings: Vec<String> = self
            .settings
            .iter()
            .map(|(name, value)| match *name {
                "Seed" => format!("Seed: {seed}"),
                // Values that contain separators are written as JSON strings.
                _ if value.contains([',', ':', '\n', '"']) => format!("{name}: {}", serde_json::json!(value)),
                _ => format!("{name}: {value}"),
            })
            .collect();
        format!("{lines}\n{}", settings.join(", "))
    }
}

/// Parses the text of an image.
pub fn parse(text: &str) -> BTreeMap<String, String> {
    let (body, last) = text.trim().rsplit_once('\n').unwrap_or(("", text.trim()));
    let (body, last) = if last.contains("Steps: ") { (body, last) } else { (text.trim(), "") };
    let (prompt, negative) = match body.split_once("Negative prompt: ") {
        Some((prompt, negative)) => (prompt, negative),
        None => (body, ""),
    };
    let mut fields = BTreeMap::from([
        ("Prompt".to_owned(), prompt.trim().to_owned()),
        ("Negative prompt".to_owned(), negative.trim().to_owned()),
    ]);
    let mut rest = last;
    while let Some((name, after)) = rest.split_once(": ") {
        let mut values = serde_json::Deserializer::from_str(after).into_iter::<String>();
        let (value, end) = match values.next() {
            Some(Ok(value)) => (value, values.byte_offset()),
            _ => {
                let end = after.find(", ").unwrap_or(after.len());
                (after[..end].to_owned(), end)
            }
        };
        fields.insert(name.trim().to_owned(), value);
        rest = after[end..].trim_start_matches([',', ' ']);
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_parsed_back() {
        let settings = [
            ("Steps", "20".to_owned()),
            ("Sampler", "Euler a".to_owned()),
            ("Seed", String::new()),
            ("Size", "64x32".to_owned()),
            ("Model", "a, b: \"c\"".to_owned()),
        ];
        let info = Infotext { prompt: "a cat,\n(red:1.2)", negative: "dog", settings: &settings };
        let text = info.text(7);
        assert_eq!(
            text,
            "a cat,\n(red:1.2)\nNegative prompt: dog\nSteps: 20, Sampler: Euler a, Seed: 7, Size: 64x32, \
             Model: \"a, b: \\\"c\\\"\""
        );
        let fields = parse(&text);
        for (name, value) in [
            ("Prompt", "a cat,\n(red:1.2)"),
            ("Negative prompt", "dog"),
            ("Steps", "20"),
            ("Sampler", "Euler a"),
            ("Seed", "7"),
            ("Model", "a, b: \"c\""),
        ] {
            assert_eq!(fields[name], value, "{name}");
        }
        let bare = Infotext { prompt: "x", negative: "", settings: &settings[..1] };
        assert_eq!(bare.text(1), "x\nSteps: 20");
        for odd in ["", "a", "Steps: ", "Steps: 1, : , a: \"b", "é: ü\nSteps: é"] {
            parse(odd);
        }
    }
}
