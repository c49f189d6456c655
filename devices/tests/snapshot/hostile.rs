//! Snapshots that somebody has damaged, or made up.

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
