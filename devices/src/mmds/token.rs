//! The sessions of version 2: a token is a secret that the guest got by a request of a kind that
//! nobody can make for it.

use std::fmt::Write;
use std::hint::black_box;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use super::MAX_TOKENS;

/// The shortest and longest life of a token, in seconds.
pub(super) const TTL: std::ops::RangeInclusive<u32> = 1..=21_600;

const SECRET_LEN: usize = 32;

/// The tokens that are good.
#[derive(Default)]
pub(super) struct Tokens {
    /// Written out in hexadecimal digits, and when it expires.
    good: Vec<([u8; 2 * SECRET_LEN], Instant)>,
}

impl Tokens {
    /// A new token, good for `ttl` seconds; `None` if the host has no random bytes.
    pub fn generate(&mut self, ttl: u32, now: Instant) -> Option<String> {
        let secret = random()?;
        let mut text = String::with_capacity(2 * SECRET_LEN);
        for byte in secret {
            let _ = write!(text, "{byte:02x}");
        }
        self.good.retain(|(_, expiry)| *expiry > now);
        if self.good.len() >= MAX_TOKENS {
            let first = (0..self.good.len()).min_by_key(|at| self.good[*at].1)?;
            self.good.swap_remove(first);
        }
        let digits = text.as_bytes().try_into().ok()?;
        let expiry = now + Duration::from_secs(ttl.into());
        self.good.push((digits, expiry));
        Some(text)
    }

    /// Whether the text is a token that is good. How long that takes tells nothing of the tokens
    /// there are but their number.
    pub fn is_good(&self, text: &[u8], now: Instant) -> bool {
        let Ok(text) = <&[u8; 2 * SECRET_LEN]>::try_from(text) else {
            return false;
        };
        let mut good = 0;
        for (digits, expiry) in &self.good {
            let mut difference = 0;
            for (a, b) in digits.iter().zip(text) {
                difference |= black_box(a ^ b);
            }
            good |= u8::from(black_box(difference) == 0) & u8::from(*expiry > now);
        }
        black_box(good) != 0
    }
}

fn random() -> Option<[u8; SECRET_LEN]> {
    let mut bytes = [0; SECRET_LEN];
    loop {
        match getrandom(&mut bytes, GetRandomFlags::NONBLOCK) {
            Ok(SECRET_LEN) => return Some(bytes),
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_until_it_expires() {
        let (mut tokens, now) = (Tokens::default(), Instant::now());
        let token = tokens.generate(60, now).unwrap();
        let later = |seconds| now + Duration::from_secs(seconds);
        assert!(tokens.is_good(token.as_bytes(), later(59)));
        assert!(!tokens.is_good(token.as_bytes(), later(60)));
    }

    #[test]
    fn only_the_very_token_is_good() {
        let (mut tokens, now) = (Tokens::default(), Instant::now());
        let (first, second) = (tokens.generate(60, now), tokens.generate(60, now));
        let (first, second) = (first.unwrap(), second.unwrap());
        assert_ne!(first, second);
        assert!(tokens.is_good(first.as_bytes(), now) && tokens.is_good(second.as_bytes(), now));
        for at in 0..first.len() {
            let mut other = first.clone().into_bytes();
            other[at] ^= 1;
            assert!(!tokens.is_good(&other, now));
        }
        for other in [&first[1..], &format!("{first}0"), "", &first.to_uppercase()] {
            assert!(!tokens.is_good(other.as_bytes(), now) || other == first);
        }
    }

    #[test]
    fn the_token_that_expires_first_gives_way_when_there_are_too_many() {
        let (mut tokens, now) = (Tokens::default(), Instant::now());
        let short = tokens.generate(5, now).unwrap();
        let long = tokens.generate(600, now).unwrap();
        for _ in 0..MAX_TOKENS - 1 {
            tokens.generate(60, now).unwrap();
        }
        assert_eq!(tokens.good.len(), MAX_TOKENS);
        assert!(!tokens.is_good(short.as_bytes(), now));
        assert!(tokens.is_good(long.as_bytes(), now));
    }
}
