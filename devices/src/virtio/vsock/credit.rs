//! Flow control of one connection (specification section 5.10.6.3), as arithmetic alone.
//!
//! All counts wrap at 32 bits, and the guest's are believed only as far as they cannot hurt: a lie
//! about them lets it have less, or more into its own buffers.

use super::{BUFFER_LEN, MAX_PACKET_LEN};

/// Space that is worth telling of when the guest believes that it has little.
const MIN_UPDATE: u32 = 4096;

/// What either side can still send.
#[derive(Debug, Default)]
pub struct Credit {
    /// Bytes that came from the guest.
    received: u32,
    /// Bytes of these that the host program took, or that were thrown away.
    forwarded: u32,
    /// `forwarded` as the guest knows it.
    told: u32,
    /// Bytes that went to the guest.
    sent: u32,
    peer_buf_alloc: u32,
    peer_fwd_cnt: u32,
}

impl Credit {
    /// Takes what a packet says of the guest's buffer; `true` if that leaves more room in it.
    pub fn heard(&mut self, buf_alloc: u32, fwd_cnt: u32) -> bool {
        let before = self.room();
        self.peer_buf_alloc = buf_alloc;
        self.peer_fwd_cnt = fwd_cnt;
        self.room() > before
    }

    /// How much the guest can take.
    pub fn room(&self) -> u32 {
        let in_flight = self.sent.wrapping_sub(self.peer_fwd_cnt);
        self.peer_buf_alloc.saturating_sub(in_flight)
    }

    /// Counts bytes sent to the guest.
    pub fn sent(&mut self, len: u32) {
        self.sent = self.sent.wrapping_add(len);
    }

    /// Counts bytes that came from the guest; `false` if they are more than it was allowed.
    pub fn received(&mut self, len: u32) -> bool {
        if len > BUFFER_LEN - self.held() {
            return false;
        }
        self.received = self.received.wrapping_add(len);
        true
    }

    /// Bytes that came and were not forwarded yet, never more than [`BUFFER_LEN`].
    pub fn held(&self) -> u32 {
        self.received.wrapping_sub(self.forwarded)
    }

    /// Counts bytes that the host program took.
    pub fn forwarded(&mut self, len: u32) {
        debug_assert!(len <= self.held());
        self.forwarded = self.forwarded.wrapping_add(len);
    }

    /// Whether the guest should hear of space that came free. It then neither waits for space that
    /// is there, nor is told of every byte that a slow reader takes.
    pub fn update_due(&self) -> bool {
        let news = self.forwarded.wrapping_sub(self.told);
        let believed = BUFFER_LEN - self.received.wrapping_sub(self.told);
        if news >= BUFFER_LEN / 2 {
            return true;
        }
        let worth_it = news >= MIN_UPDATE || (news > 0 && self.held() == 0);
        believed < MAX_PACKET_LEN && worth_it
    }

    /// The two fields of the next packet to the guest, which from then on knows them.
    pub fn tell(&mut self) -> (u32, u32) {
        self.told = self.forwarded;
        (BUFFER_LEN, self.forwarded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_cannot_send_more_than_the_buffer() {
        let mut credit = Credit::default();
        assert!(credit.received(BUFFER_LEN));
        assert!(!credit.received(1));
        credit.forwarded(10);
        assert!(!credit.received(11));
        assert!(credit.received(10));
    }

    #[test]
    fn counts_wrap() {
        let mut credit = Credit {
            received: u32::MAX - 5,
            forwarded: u32::MAX - 5,
            told: u32::MAX - 5,
            sent: u32::MAX,
            ..Credit::default()
        };
        credit.heard(100, u32::MAX);
        assert_eq!(credit.room(), 100);
        credit.sent(60);
        assert_eq!(credit.room(), 40);
        assert!(credit.heard(100, 59));
        assert_eq!(credit.room(), 100);
        assert!(credit.received(200_000));
        credit.forwarded(200_000);
        assert!(credit.update_due());
        assert_eq!(credit.tell().1, 199_994);
        assert!(!credit.update_due());
    }

    #[test]
    fn a_lie_about_forwarded_bytes_leaves_no_room() {
        let mut credit = Credit::default();
        credit.heard(1000, 1);
        assert_eq!(credit.room(), 0);
    }

    #[test]
    fn a_full_buffer_that_drains_in_small_steps_is_told_in_larger_ones() {
        let mut credit = Credit::default();
        assert!(credit.received(BUFFER_LEN));
        let mut updates = 0;
        for _ in 0..BUFFER_LEN / 256 {
            credit.forwarded(256);
            if credit.update_due() {
                credit.tell();
                updates += 1;
            }
        }
        assert!((2..=32).contains(&updates), "{updates}");
        // Whatever is left untold is not what the guest waits for.
        assert!(BUFFER_LEN - credit.received.wrapping_sub(credit.told) >= MAX_PACKET_LEN);
    }

    #[test]
    fn the_last_byte_out_of_a_small_rest_is_told_when_the_guest_believes_in_a_full_buffer() {
        let mut credit = Credit::default();
        assert!(credit.received(BUFFER_LEN));
        credit.forwarded(BUFFER_LEN - 1);
        credit.tell();
        assert!(credit.received(BUFFER_LEN - 1));
        credit.forwarded(1);
        assert!(!credit.update_due());
        credit.forwarded(BUFFER_LEN - 1);
        assert!(credit.update_due());
    }
}
