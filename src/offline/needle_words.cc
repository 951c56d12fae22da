// SPDX-License-Identifier: Apache-2.0
#include "offline/needle_words.h"

namespace lode {
namespace {

constexpr std::string_view kAdjectives[] = {
    "absurd",  "ancient", "awake",   "brave",  "bright", "brisk",   "broad",  "calm",    "careful",
    "cheap",   "clever",  "clumsy",  "cold",   "cosmic", "crazy",   "crisp",  "curious", "damp",
    "dark",    "deep",    "dizzy",   "dull",   "eager",  "early",   "easy",   "elastic", "empty",
    "fancy",   "fierce",  "flat",    "foamy",  "fresh",  "fuzzy",   "gentle", "giant",   "glossy",
    "golden",  "grand",   "greedy",  "happy",  "harsh",  "heavy",   "hollow", "humble",  "hungry",
    "idle",    "jolly",   "juicy",   "keen",   "lazy",   "lively",  "lonely", "loud",    "lucky",
    "mellow",  "merry",   "mighty",  "misty",  "modern", "muddy",   "narrow", "neat",    "noisy",
    "odd",     "pale",    "patient", "plain",  "polite", "proud",   "quaint", "quick",   "quiet",
    "rapid",   "rare",    "ripe",    "rough",  "round",  "royal",   "rusty",  "salty",   "scarce",
    "shallow", "sharp",   "shiny",   "shy",    "silent", "silky",   "silly",  "slim",    "slow",
    "smooth",  "sour",    "spicy",   "steep",  "stiff",  "strict",  "sudden", "sunny",   "sweet",
    "swift",   "tall",    "tame",    "tender", "thick",  "thirsty", "tidy",   "tiny",    "tough",
    "urban",   "vague",   "vast",    "vivid",  "warm",   "weary",   "weird",  "wicked",  "wild",
    "wise",    "witty",   "wooden",  "young",  "zealous"};

constexpr std::string_view kNouns[] = {
    "acorn",    "airport", "almond",   "anchor",   "anvil",   "apron",   "atlas",    "autumn",
    "badge",    "bagel",   "bakery",   "balcony",  "bamboo",  "banjo",   "barrel",   "basket",
    "beacon",   "beaver",  "bench",    "bicycle",  "biscuit", "blanket", "blossom",  "bonfire",
    "bottle",   "branch",  "bridge",   "bucket",   "button",  "cabin",   "cactus",   "camera",
    "candle",   "canyon",  "carpet",   "castle",   "cavern",  "cellar",  "chapel",   "cherry",
    "chimney",  "circus",  "clarinet", "closet",   "cobweb",  "coconut", "comet",    "compass",
    "copper",   "coral",   "cottage",  "cricket",  "crystal", "cushion", "daisy",    "dancer",
    "desert",   "diamond", "dolphin",  "donkey",   "dragon",  "drawer",  "eagle",    "echo",
    "elbow",    "engine",  "falcon",   "farmer",   "feather", "fiddle",  "flute",    "forest",
    "fountain", "fridge",  "galaxy",   "garden",   "garlic",  "ginger",  "giraffe",  "glacier",
    "goblet",   "gravel",  "guitar",   "hammer",   "harbor",  "harvest", "hazel",    "helmet",
    "hermit",   "hinge",   "honey",    "igloo",    "island",  "ivory",   "jacket",   "jaguar",
    "jasmine",  "jungle",  "kettle",   "kitten",   "ladder",  "lagoon",  "lantern",  "lemon",
    "library",  "lizard",  "lobster",  "locket",   "magnet",  "mango",   "marble",   "market",
    "meadow",   "mirror",  "mitten",   "monkey",   "mosaic",  "muffin",  "museum",   "napkin",
    "nectar",   "needle",  "nickel",   "nutmeg",   "oasis",   "ocean",   "octopus",  "olive",
    "orchid",   "oyster",  "paddle",   "palace",   "parrot",  "pebble",  "pencil",   "pepper",
    "piano",    "pillow",  "pirate",   "planet",   "pocket",  "pony",    "potato",   "prairie",
    "puddle",   "pumpkin", "puzzle",   "quarry",   "quilt",   "rabbit",  "radish",   "raven",
    "ribbon",   "river",   "robin",    "rocket",   "saddle",  "sailor",  "salmon",   "sandal",
    "satin",    "scarf",   "school",   "shadow",   "sheriff", "shovel",  "silver",   "sketch",
    "slipper",  "spider",  "spoon",    "squirrel", "stable",  "statue",  "summit",   "tailor",
    "teapot",   "temple",  "thimble",  "thunder",  "ticket",  "tiger",   "timber",   "toffee",
    "tomato",   "trumpet", "tulip",    "tunnel",   "turnip",  "turtle",  "umbrella", "urchin",
    "valley",   "velvet",  "violin",   "volcano",  "wagon",   "walnut",  "walrus",   "weasel",
    "whistle",  "willow",  "window",   "winter",   "wizard",  "yogurt",  "zebra",    "zipper"};

}  // namespace

std::span<const std::string_view> NeedleAdjectives() {
  return kAdjectives;
}
std::span<const std::string_view> NeedleNouns() {
  return kNouns;
}

}  // namespace lode
