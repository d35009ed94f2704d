//! Small rules for plain JSON bodies, in which `null` means the same as nothing.

use serde::{Deserialize, Deserializer};

/// `null` is the default.
pub(crate) fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// A number that is `N` unless something is said.
pub(crate) fn number<const N: u32>() -> u32 {
    N
}

/// `null` is `N`.
pub(crate) fn or_number<'de, const N: u32, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Option::<u32>::deserialize(deserializer).map(|number| number.unwrap_or(N))
}

pub(crate) fn yes() -> bool {
    true
}

/// `null` is `true`.
pub(crate) fn or_yes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Option::<bool>::deserialize(deserializer).map(|flag| flag.unwrap_or(true))
}
