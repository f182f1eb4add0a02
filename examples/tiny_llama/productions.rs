//! Table of productions of [`super::grammar`].

/// Grammatical persons of a story. Each `#` in a production stands for the same one of these.
pub static PERSONS: [&str; 4] = ["she", "he", "it", "they"];

/// Start symbol of the generator.
pub const STORY: &str = "Story";
/// Start symbol of the parser: a story with any number of events.
pub const TEXT: &str = "Text";

/// Symbols and their alternatives, which are equally likely.
///
/// - `Symbol#` is the symbol for the production's person, `Symbol@they` the symbol for a fixed person.
/// - Two forms separated by a slash are singular and plural; four are the forms for the four [`PERSONS`].
/// - A word that is not a symbol is a terminal.
pub static PRODUCTIONS: &[(&str, &[&str])] = &[
    (
        STORY,
        &[
            "Opening# Event# Ending#",
            "Opening# Event# Event# Ending#",
            "Opening# Event# Event# Event# Ending#",
        ],
    ),
    (TEXT, &["Opening# Rest#"]),
    ("Rest#", &["Ending#", "Event# Rest#"]),
    (
        "Opening#",
        &["there is/are a/some Hero# Place .", "the Hero# lives/live Place .", "Name# lives/live Place ."],
    ),
    (
        "Event#",
        &[
            "Pronoun# Does# .",
            "Pronoun# Does# and Does# .",
            "Time , Pronoun# Does# .",
            "when Clause , Pronoun# Does# .",
            "Pronoun# Does# because Pronoun# is/are Feeling .",
            "Time , Clause .",
            "Own# Family .",
            "Own# Thing is Look .",
        ],
    ),
    (
        "Ending#",
        &[
            "in the end , Pronoun# is/are Feeling .",
            "now Pronoun# sleeps/sleep Place .",
            "at the end of the day , Pronoun# goes/go home .",
        ],
    ),
    // Predicates. After an auxiliary, the verb has its plural form.
    (
        "Does#",
        &[
            "Acts#",
            "Acts#",
            "takes/take Own# Thing",
            "washes/wash Self#",
            "is/are Feeling",
            "wants/want to Acts@they",
            "tries/try to Acts@they",
            "does/do not Acts@they",
            "can Acts@they",
            "thinks/think that Clause",
        ],
    ),
    (
        "Acts#",
        &[
            "sleeps/sleep Place",
            "walks/walk Way",
            "runs/run Way",
            "eats/eat Food",
            "gives/give Food to Object",
            "sees/see Object",
            "likes/like Object",
            "helps/help Object",
            "waits/wait for Object",
            "looks/look at Object",
            "plays/play Place",
            "sings/sing a song Place",
        ],
    ),
    ("Clause", &["Subject# Acts#"]),
    ("Family", &["Kin# Acts#"]),
    // Subjects and objects.
    ("Subject#", &["Name#", "the Being#", "the Hero#"]),
    ("Object", &["Name#", "the Being#", "a/some Hero#"]),
    ("Hero#", &["Being#", "Quality Being#", "Quality Being#", "Being# that Acts#", "Being# that Others"]),
    ("Others", &["Someone# sees/see", "Someone# likes/like", "Someone# helps/help"]),
    ("Someone#", &["Name#", "the Being#"]),
    (
        "Being#",
        &[
            "girl/boy/cat/children",
            "woman/man/dog/farmers",
            "queen/king/fox/birds",
            "princess/prince/bear/sailors",
            "grandmother/grandfather/rabbit/neighbours",
            "witch/wizard/horse/friends",
        ],
    ),
    ("Kin#", &["sister/brother/dog/parents", "mother/father/cat/cousins"]),
    ("Name#", &["Woman/Man/Pet/Couple"]),
    ("Couple", &["Woman and Man", "Man and Woman"]),
    ("Woman", &["Anna", "Mary", "Lucy", "Clara"]),
    ("Man", &["Tom", "Peter", "Jack", "Paul"]),
    ("Pet", &["Rex", "Whiskers"]),
    ("Pronoun#", &["she/he/it/they"]),
    ("Own#", &["her/his/its/their"]),
    ("Self#", &["herself/himself/itself/themselves"]),
    // Places, directions, times and things.
    (
        "Place",
        &[
            "in the garden",
            "in the kitchen",
            "in the forest",
            "in the village",
            "by the river",
            "by the sea",
            "under the bridge",
            "under a tree",
            "on the hill",
            "behind the house",
            "near the mill",
            "at the market",
        ],
    ),
    (
        "Way",
        &[
            "home",
            "to the river",
            "to the market",
            "through the forest",
            "along the road",
            "over the bridge",
            "across the field",
            "up the hill",
        ],
    ),
    ("Time", &["in the morning", "in the evening", "one day", "every day", "after lunch", "at night"]),
    ("Food", &["bread", "an apple", "soup", "a cake", "some cheese", "a pear"]),
    ("Thing", &["coat", "hat", "basket", "lamp", "book", "boat"]),
    ("Look", &["old", "blue", "red", "big", "small"]),
    ("Quality", &["small", "big", "brave", "clever", "kind", "young", "quiet", "lazy"]),
    ("Feeling", &["happy", "tired", "hungry", "sad", "glad", "cold", "thirsty", "ready"]),
];
