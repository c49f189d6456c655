//! The order of things: in every round each contestant has one turn, in an order of its own.
//!
//! What one monitor leaves behind (the kernel frees a machine late, a disk goes on writing) meets
//! whoever comes next. A fixed order would charge it to the same contestant every time.

use std::io::{IsTerminal, Write, stderr};

use crate::stats::Random;

/// Orders differ from round to round, and are the same in every run.
const SEED: u64 = 0x0072_6f75_6e64;

/// Calls `once` for each of the `turns` in every round, and returns what it returned per turn, in
/// the order of rounds. The `warm_up` rounds come first and are forgotten.
pub fn run<P, T>(
    title: &str,
    turns: &[P],
    warm_up: usize,
    rounds: usize,
    mut once: impl FnMut(&P) -> anyhow::Result<T>,
) -> anyhow::Result<Vec<Vec<T>>> {
    let mut random = Random::new(SEED);
    let mut order: Vec<usize> = (0..turns.len()).collect();
    let mut results: Vec<Vec<T>> = turns.iter().map(|_| Vec::with_capacity(rounds)).collect();
    let progress = Progress::new(title, warm_up, rounds);
    for round in 0..warm_up + rounds {
        progress.show(round);
        random.shuffle(&mut order);
        for &turn in &order {
            let result = once(&turns[turn])?;
            if round >= warm_up {
                results[turn].push(result);
            }
        }
    }
    Ok(results)
}

/// A line on a terminal that says how far things are.
struct Progress<'a> {
    title: &'a str,
    warm_up: usize,
    rounds: usize,
    on: bool,
}

impl<'a> Progress<'a> {
    fn new(title: &'a str, warm_up: usize, rounds: usize) -> Self {
        Self {
            title,
            warm_up,
            rounds,
            on: stderr().is_terminal(),
        }
    }

    fn show(&self, round: usize) {
        if !self.on {
            return;
        }
        let (title, warm_up, rounds) = (self.title, self.warm_up, self.rounds);
        let text = match round.checked_sub(warm_up) {
            None => format!("{title}: warm-up {} of {warm_up}", round + 1),
            Some(round) => format!("{title}: round {} of {rounds}", round + 1),
        };
        // A terminal that has gone away does not matter to the figures.
        let _ = write!(stderr(), "\r\x1b[K{text}");
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if self.on {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_has_one_turn_a_round() {
        let mut calls = Vec::new();
        let results = run("test", &['a', 'b', 'c'], 2, 4, |turn| {
            calls.push(*turn);
            Ok(calls.len() - 1)
        });
        let results = results.unwrap();
        assert_eq!(calls.len(), 18);
        for (turn, numbers) in results.iter().enumerate() {
            let rounds: Vec<_> = numbers.iter().map(|number| number / 3).collect();
            assert_eq!(rounds, [2, 3, 4, 5], "turn {turn}");
        }
        let orders: Vec<_> = calls.chunks(3).collect();
        assert!(orders.iter().any(|order| order != &orders[0]), "{orders:?}");
    }

    #[test]
    fn the_first_failure_ends_it() {
        let mut calls = 0;
        let result: anyhow::Result<Vec<Vec<()>>> = run("test", &[1, 2], 0, 5, |_| {
            calls += 1;
            anyhow::bail!("no")
        });
        assert!(result.is_err());
        assert_eq!(calls, 1);
    }
}
