//! Why a connection ends: who erred, the close code, and whether to come back, in one match.

/// Who is to blame; decides what is logged and what is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Culprit {
    /// The client broke a rule of the protocol.
    ClientMisbehaved,
    /// A post was refused for what it is.
    PosterRefused,
    /// Another node of the cluster sent nonsense.
    PeerFaulty,
    /// Too much work for what there is.
    Overloaded,
    /// A fault of this node.
    OurFault,
    /// Nobody: the ordinary end.
    Nobody,
}

/// Why we close a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// The peer asked for it, or it is simply over.
    Normal,
    /// The peer broke RFC 6455: 1002.
    Protocol(&'static str),
    /// Text that is not UTF-8: 1007.
    NotUtf8,
    /// Something within the protocol that we do not take, such as too many fragments: 1008.
    Policy(&'static str),
    /// A frame or message over the limit: 1009.
    TooBig,
    /// The node goes away: 1012, to come back after that many milliseconds.
    Draining {
        /// How long to wait before coming back, in milliseconds.
        retry_after_ms: u32,
    },
    /// More than 20 bad commands a minute: 4400.
    BadInput,
    /// The token ran out and was not refreshed: 4401.
    TokenExpired,
    /// Banned, or the right to watch was revoked: 4403.
    Revoked,
    /// No sign of life for 90 seconds: 4408.
    Silent,
    /// Over the rate: 4429.
    OverRate,
    /// Takes too little of what is sent: 4508.
    TooSlow,
    /// A limit of this node is reached: 1013.
    Overloaded(&'static str),
}

/// What a client is told when it is closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloseAdvice {
    /// The close code.
    pub code: u16,
    /// At most 123 bytes.
    pub reason: String,
    /// Who erred.
    pub culprit: Culprit,
    /// A client may come back unasked.
    pub come_back: bool,
}

impl Closing {
    /// The code, the reason, the culprit and the advice.
    #[must_use]
    pub fn advice(self) -> CloseAdvice {
        let (code, reason, culprit, come_back) = match self {
            Self::Normal => (1000, String::new(), Culprit::Nobody, true),
            Self::Protocol(what) => (1002, what.to_owned(), Culprit::ClientMisbehaved, true),
            Self::NotUtf8 => (1007, "text that is not UTF-8".to_owned(), Culprit::ClientMisbehaved, true),
            Self::Policy(what) => (1008, what.to_owned(), Culprit::ClientMisbehaved, true),
            Self::TooBig => (1009, "message over the limit".to_owned(), Culprit::ClientMisbehaved, true),
            Self::Draining { retry_after_ms } => {
                (1012, format!("{{\"retry_after_ms\":{retry_after_ms}}}"), Culprit::Nobody, true)
            }
            Self::Overloaded(what) => (1013, what.to_owned(), Culprit::Overloaded, true),
            Self::BadInput => (4400, "too many malformed commands".to_owned(), Culprit::ClientMisbehaved, false),
            Self::TokenExpired => (4401, "the token has expired".to_owned(), Culprit::PosterRefused, false),
            Self::Revoked => (4403, "banned or revoked".to_owned(), Culprit::PosterRefused, false),
            Self::Silent => (4408, "no sign of life".to_owned(), Culprit::ClientMisbehaved, true),
            Self::OverRate => (4429, "over the rate".to_owned(), Culprit::ClientMisbehaved, true),
            Self::TooSlow => (4508, "too slow: come back and resume".to_owned(), Culprit::ClientMisbehaved, true),
        };
        CloseAdvice { code, reason, culprit, come_back }
    }

    /// What waits for the client is written before the Close: the answers to what it did right, and why it is closed.
    /// Only who takes too little of it gets nothing more.
    #[must_use]
    pub const fn lets_finish(self) -> bool {
        !matches!(self, Self::TooSlow)
    }

    /// The Close frame.
    #[must_use]
    pub fn frame(self) -> Vec<u8> {
        let advice = self.advice();
        super::frame::close(advice.code, &advice.reason)
    }

    /// The word for logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Protocol(_) => "protocol",
            Self::NotUtf8 => "not_utf8",
            Self::Policy(_) => "policy",
            Self::TooBig => "too_big",
            Self::Draining { .. } => "draining",
            Self::BadInput => "bad_input",
            Self::TokenExpired => "token_expired",
            Self::Revoked => "revoked",
            Self::Silent => "silent",
            Self::OverRate => "over_rate",
            Self::TooSlow => "too_slow",
            Self::Overloaded(_) => "overloaded",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_44xx_codes_but_4408_and_4429_say_do_not_come_back() {
        for closing in [
            Closing::Normal,
            Closing::Draining { retry_after_ms: u32::MAX },
            Closing::BadInput,
            Closing::TokenExpired,
            Closing::Revoked,
            Closing::Silent,
            Closing::OverRate,
            Closing::TooSlow,
        ] {
            let advice = closing.advice();
            let fatal = (4400..4500).contains(&advice.code) && advice.code != 4408 && advice.code != 4429;
            assert_eq!(advice.come_back, !fatal, "{closing:?}");
            assert!(advice.reason.len() <= 123);
        }
    }
}
