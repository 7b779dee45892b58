CREATE TABLE accounts (
    person TEXT PRIMARY KEY, password TEXT NOT NULL, totp BLOB, totp_step INTEGER NOT NULL DEFAULT 0,
    created INTEGER NOT NULL
) STRICT;
CREATE TABLE devices (
    person TEXT NOT NULL, device TEXT NOT NULL, first_login INTEGER NOT NULL, last_login INTEGER NOT NULL,
    PRIMARY KEY (person, device)
) STRICT;
CREATE TABLE device_tags (
    person TEXT NOT NULL, device TEXT NOT NULL, tag TEXT NOT NULL, PRIMARY KEY (person, device, tag)
) STRICT;
CREATE TABLE sessions (
    token BLOB PRIMARY KEY, person TEXT NOT NULL, device TEXT NOT NULL, source TEXT NOT NULL,
    created INTEGER NOT NULL, expires INTEGER NOT NULL, ends INTEGER
) STRICT;
CREATE INDEX sessions_of_person ON sessions (person);
CREATE TABLE verifiers (
    verifier TEXT PRIMARY KEY, token BLOB UNIQUE, code BLOB UNIQUE, code_expires INTEGER,
    created INTEGER NOT NULL, enrolled INTEGER
) STRICT;
CREATE TABLE grants (
    handle INTEGER PRIMARY KEY, session BLOB NOT NULL, person TEXT NOT NULL, device TEXT NOT NULL,
    verifier TEXT NOT NULL, receiver TEXT NOT NULL, rule TEXT NOT NULL, source TEXT NOT NULL,
    address TEXT NOT NULL, protocol INTEGER NOT NULL, port INTEGER NOT NULL, prefix TEXT NOT NULL,
    flags INTEGER NOT NULL, issued INTEGER NOT NULL, expires INTEGER NOT NULL,
    revoked INTEGER, announced INTEGER
) STRICT;
CREATE INDEX grants_by_expiry ON grants (expires);
CREATE INDEX grants_of_person ON grants (person, device) WHERE revoked IS NULL;
CREATE INDEX grants_to_announce ON grants (handle) WHERE announced = 0;
CREATE TABLE rechecks (verifier TEXT PRIMARY KEY) STRICT;
CREATE INDEX grants_of_person_by_expiry ON grants (person, expires);
CREATE TABLE identities (
    person TEXT PRIMARY KEY, issuer TEXT NOT NULL, subject TEXT NOT NULL, groups TEXT NOT NULL,
    tags TEXT NOT NULL DEFAULT '[]', created INTEGER NOT NULL, last_login INTEGER, UNIQUE (issuer, subject)
) STRICT;
CREATE TABLE provider_sessions (
    token BLOB PRIMARY KEY, subject TEXT NOT NULL, sid TEXT, refresh_token TEXT, renewed INTEGER NOT NULL
) STRICT;
CREATE INDEX provider_sessions_of_subject ON provider_sessions (subject);
CREATE TRIGGER provider_sessions_end AFTER DELETE ON sessions BEGIN
    DELETE FROM provider_sessions WHERE token = OLD.token;
END;
CREATE TABLE passkeys (
    id BLOB PRIMARY KEY, person TEXT NOT NULL, fixed BLOB NOT NULL, state BLOB NOT NULL, name TEXT NOT NULL,
    created INTEGER NOT NULL, used INTEGER
) STRICT;
CREATE INDEX passkeys_of_person ON passkeys (person);
CREATE TABLE passkey_handles (person TEXT PRIMARY KEY, handle BLOB NOT NULL UNIQUE) STRICT;
CREATE TRIGGER passkeys_end AFTER DELETE ON accounts BEGIN
    DELETE FROM passkeys WHERE person = OLD.person;
    DELETE FROM passkey_handles WHERE person = OLD.person;
END;
CREATE TABLE preferences (
    person TEXT NOT NULL, target TEXT NOT NULL, choice TEXT NOT NULL, PRIMARY KEY (person, target)
) STRICT;
CREATE TABLE audit (
    id INTEGER PRIMARY KEY, trail TEXT NOT NULL, time INTEGER NOT NULL, event TEXT NOT NULL,
    person TEXT, device TEXT, source TEXT, receiver TEXT, rule TEXT, detail TEXT NOT NULL, operator TEXT,
    hash BLOB NOT NULL
) STRICT;
CREATE INDEX audit_of_trail ON audit (trail, id);
CREATE TABLE audit_trails (
    trail TEXT PRIMARY KEY, genesis BLOB NOT NULL, cut_id INTEGER NOT NULL, cut_hash BLOB NOT NULL,
    head_id INTEGER NOT NULL, head_hash BLOB NOT NULL
) STRICT;
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit
    BEGIN SELECT RAISE(ABORT, 'audit entries are not changed'); END;
CREATE TRIGGER audit_is_cut_from_its_beginning BEFORE DELETE ON audit
    WHEN OLD.id > (SELECT cut_id FROM audit_trails WHERE trail = OLD.trail)
    BEGIN SELECT RAISE(ABORT, 'audit entries are not deleted'); END;
CREATE TRIGGER audit_grows_at_its_end BEFORE INSERT ON audit
    WHEN NEW.id <= (SELECT max(head_id) FROM audit_trails)
    BEGIN SELECT RAISE(ABORT, 'audit entries are added at the end'); END;
CREATE TRIGGER audit_trails_stay BEFORE DELETE ON audit_trails
    BEGIN SELECT RAISE(ABORT, 'audit trails are not deleted'); END;
CREATE TRIGGER audit_trails_go_on BEFORE UPDATE ON audit_trails
    WHEN NEW.trail <> OLD.trail OR NEW.genesis <> OLD.genesis OR NEW.head_id < OLD.head_id
        OR NEW.cut_id < OLD.cut_id OR NEW.cut_id <> OLD.cut_id AND NOT EXISTS (
            SELECT 1 FROM audit WHERE id = NEW.cut_id AND trail = NEW.trail AND hash = NEW.cut_hash)
    BEGIN SELECT RAISE(ABORT, 'audit trails only go on'); END;
CREATE TABLE policies (
    version INTEGER PRIMARY KEY AUTOINCREMENT, time INTEGER NOT NULL, operator TEXT, note TEXT NOT NULL,
    sha256 TEXT NOT NULL, text TEXT NOT NULL
) STRICT;
CREATE TABLE refusals (
    id INTEGER PRIMARY KEY AUTOINCREMENT, time INTEGER NOT NULL, person TEXT NOT NULL, device TEXT NOT NULL,
    source TEXT NOT NULL, address TEXT NOT NULL, protocol INTEGER NOT NULL, port INTEGER NOT NULL
) STRICT;
CREATE INDEX refusals_by_time ON refusals (time);
INSERT INTO accounts (person, password, created) VALUES ('alice', 'hash', 1), ('bob', 'hash', 1);
INSERT INTO sessions (token, person, device, source, created, expires, ends) VALUES
    (x'0101010101010101010101010101010101010101010101010101010101010101', 'alice', 'laptop', '192.0.2.1', 10, 10000, NULL),
    (x'0202020202020202020202020202020202020202020202020202020202020202', 'alice', 'phone', '192.0.2.1', 20, 10000, NULL),
    (x'0303030303030303030303030303030303030303030303030303030303030303', 'alice', 'browser', '192.0.2.1', 30, 10000, 20000),
    (x'0404040404040404040404040404040404040404040404040404040404040404', 'bob', 'laptop', '192.0.2.1', 15, 10000, NULL);
INSERT INTO grants (handle, session, person, device, verifier, receiver, rule, source, address, protocol, port, prefix,
    flags, issued, expires, revoked, announced) VALUES
    (257, x'0202020202020202020202020202020202020202020202020202020202020202', 'alice', 'phone', 'edge', 'git', 'r',
        '192.0.2.1', '203.0.113.1', 6, 22, '203.0.113.1/32', 1, 100, 400, NULL, NULL),
    (258, x'0505050505050505050505050505050505050505050505050505050505050505', 'alice', 'phone', 'edge', 'git', 'r',
        '192.0.2.1', '203.0.113.1', 6, 22, '203.0.113.1/32', 1, 100, 400, NULL, NULL);
INSERT INTO audit_trails (trail, genesis, cut_id, cut_hash, head_id, head_hash)
    VALUES ('acts', zeroblob(32), 0, zeroblob(32), 0, zeroblob(32)),
        ('refusals', zeroblob(32), 0, zeroblob(32), 0, zeroblob(32));
PRAGMA user_version = 9;
