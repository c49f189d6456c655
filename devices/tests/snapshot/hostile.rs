//! Snapshots that somebody has damaged, or made up.

use proptest::prelude::*;
use tine_snapshot::section::Section;

/// The sections with each bit of each of them turned over, every section cut off at each place,
/// with a byte too many, and of another kind or version.
pub fn damaged(sections: &[Section]) -> Vec<Vec<Section>> {
    let mut all = Vec::new();
    for at in 0..sections.len() {
        let mut damage = |change: &dyn Fn(&mut Section)| {
            let mut sections = sections.to_vec();
            change(&mut sections[at]);
            all.push(sections);
        };
        for place in 0..sections[at].payload.len() {
            for mask in (0..8).map(|bit| 1 << bit).chain([0xff]) {
                damage(&|section| section.payload[place] ^= mask);
            }
            damage(&|section| section.payload.truncate(place));
        }
        damage(&|section| section.payload.push(0));
        damage(&|section| section.kind.push('s'));
        damage(&|section| section.version += 1);
    }
    all
}

/// Changes to a snapshot: a section, a place in it, and what the byte there becomes.
pub fn made_up() -> impl Strategy<Value = Vec<(usize, usize, u8)>> {
    let byte = prop_oneof![
        any::<u8>(),
        Just(0),
        Just(1),
        Just(0x7f),
        Just(0x80),
        Just(0xff)
    ];
    prop::collection::vec((any::<usize>(), any::<usize>(), byte), 1..6)
}

/// Carries them out.
pub fn change(sections: &[Section], changes: &[(usize, usize, u8)]) -> Vec<Section> {
    let mut sections = sections.to_vec();
    for (section, place, byte) in changes {
        let at = section % sections.len();
        let payload = &mut sections[at].payload;
        let place = place % payload.len().max(1);
        if let Some(old) = payload.get_mut(place) {
            *old = *byte;
        }
    }
    sections
}

/// How many of them.
pub fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 100,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}
