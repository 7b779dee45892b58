-- Wireshark and tshark dissector for the data that Vouchsafe adds to packets: the tail, the shim, the discovery
-- record, and for the messages of sealed tunnels.
--
-- Formats: docs/wire.md. Put this file into the folder of personal Lua plugins (Help > About > Folders), or run
--   tshark -X lua_script:vouchsafe.lua -Y vouchsafe -V -r FILE
-- The dissector has no keys: only the verifier can tell whether a tag is right, and records of sealed tunnels stay
-- closed (`vouchsafe inspect --keys` opens them). A tunnel is recognised by its initiation.

local vouchsafe = Proto("vouchsafe", "Vouchsafe")

local TAIL_LENGTH, TOKEN_LENGTH, CLOCK_SKEW = 40, 36, 30
local CARRIERS = { VSF1 = "tail", VSS1 = "stream", VSO1 = "fast_open", VSU1 = "tcp_in_udp" }
local IN_SEGMENTS, IN_DATAGRAMS, IN_TURNED = { tail = true, stream = true, fast_open = true }, { tail = true }, { tcp_in_udp = true }
local UDP_HEADER, TCP_HEADER = 8, 20
local OPTION_TYPE, OPTION_AT, IP_IN_IP = 0x9e, 20, 4
local SUITES = { [1] = "sha224", [2] = "aes-cmac", [3] = "siphash" }
local KINDS = { [1] = "support", [2] = "key transfer", [3] = "token of LS", [4] = "token" }
local LENGTHS = { [1] = 3, [2] = 38, [3] = 40, [4] = 39 }

local MESSAGES = {
    [1] = "initiation", [2] = "response", [3] = "early", [4] = "packet", [5] = "block", [6] = "control", [7] = "unknown"
}
local TREATMENTS = { [1] = "authenticate", [2] = "encrypt" }
local COMPRESSIONS = { [0] = "none", [1] = "lz4", [2] = "zstd" }
local SEAL_SUITES = { [1] = "aes-128-gcm", [2] = "aes-256-gcm", [3] = "chacha20-poly1305" }
local REFUSALS = { [0] = "none", [1] = "no_suite", [2] = "limit", [3] = "revoked" }
local INITIATION, RESPONSE, RECORD_LEAST, HEADER, TAG = 80, 64, 33, 16, 16

local f = vouchsafe.fields
f.carrier = ProtoField.string("vouchsafe.carrier", "Carrier")
f.kind = ProtoField.uint8("vouchsafe.kind", "Kind", base.DEC, KINDS)
f.version = ProtoField.uint8("vouchsafe.version", "Version", base.DEC, nil, 0xf0)
f.suite = ProtoField.uint8("vouchsafe.suite", "Suite", base.DEC, SUITES, 0x0f)
f.flags = ProtoField.uint8("vouchsafe.flags", "Flags", base.HEX)
f.port = ProtoField.bool("vouchsafe.flags.port", "For one protocol and port", 8, nil, 0x01)
f.source = ProtoField.bool("vouchsafe.flags.source", "Bound to the sender's address", 8, nil, 0x02)
f.reply = ProtoField.bool("vouchsafe.flags.reply", "The receiver may open flows, too", 8, nil, 0x04)
f.single = ProtoField.bool("vouchsafe.flags.single", "For one flow", 8, nil, 0x08)
f.bearer = ProtoField.bool("vouchsafe.flags.bearer", "The key itself is the proof", 8, nil, 0x10)
f.ipv6 = ProtoField.bool("vouchsafe.flags.ipv6", "IPv6", 8, nil, 0x20)
f.sealed = ProtoField.bool("vouchsafe.flags.sealed", "Inside a sealed tunnel only", 8, nil, 0x40)
f.epoch = ProtoField.uint8("vouchsafe.epoch", "Epoch (low 8 bits)")
f.prefix = ProtoField.uint8("vouchsafe.prefix_length", "Prefix length")
f.expires = ProtoField.absolute_time("vouchsafe.expires", "Grant ends", base.UTC)
f.handle = ProtoField.uint64("vouchsafe.handle", "Handle of the grant", base.HEX)
f.time = ProtoField.absolute_time("vouchsafe.time", "Made", base.UTC)
f.nonce = ProtoField.uint32("vouchsafe.nonce", "Nonce", base.HEX)
f.tag = ProtoField.bytes("vouchsafe.tag", "Tag")
f.unique_id = ProtoField.bytes("vouchsafe.ls.unique_id", "Unique id")
f.nonce1 = ProtoField.bytes("vouchsafe.ls.nonce1", "Nonce 1")
f.nonce2 = ProtoField.uint16("vouchsafe.ls.nonce2", "Nonce 2", base.HEX)
f.hash = ProtoField.bytes("vouchsafe.ls.hash", "Hash")
f.client_key = ProtoField.bytes("vouchsafe.ls.client_key", "Client key, in clear")
f.record = ProtoField.string("vouchsafe.discovery", "Discovery record")
f.message = ProtoField.uint8("vouchsafe.seal.message", "Message", base.DEC, MESSAGES)
f.treatment = ProtoField.uint8("vouchsafe.seal.treatment", "Treatment", base.DEC, TREATMENTS, 0x0f)
f.compression = ProtoField.uint8("vouchsafe.seal.compression", "Compression", base.DEC, COMPRESSIONS, 0xf0)
f.seal_suite = ProtoField.uint8("vouchsafe.seal.suite", "Suite", base.DEC, SEAL_SUITES)
f.detail = ProtoField.uint8("vouchsafe.seal.detail", "Detail", base.HEX)
f.index = ProtoField.uint32("vouchsafe.seal.index", "Index", base.HEX)
f.other_index = ProtoField.uint32("vouchsafe.seal.responder_index", "Responder's index", base.HEX)
f.lane = ProtoField.uint8("vouchsafe.seal.lane", "Lane")
f.number = ProtoField.uint64("vouchsafe.seal.number", "Number")
f.body = ProtoField.bytes("vouchsafe.seal.body", "Body")
f.record_tag = ProtoField.bytes("vouchsafe.seal.tag", "Tag")
f.forward = ProtoField.bool("vouchsafe.seal.forward", "With an exchange of keys", 8, nil, 0x01)
f.suites = ProtoField.uint8("vouchsafe.seal.suites", "Suites that it opens", base.HEX)
f.helped = ProtoField.uint8("vouchsafe.seal.helped", "Suites that its hardware helps with", base.HEX)
f.share = ProtoField.bytes("vouchsafe.seal.share", "Share")
f.refusal = ProtoField.uint8("vouchsafe.seal.refusal", "Refusal", base.DEC, REFUSALS)

local e = vouchsafe.experts
e.malformed = ProtoExpert.new("vouchsafe.malformed", "Malformed: a verifier drops this", expert.group.MALFORMED, expert.severity.ERROR)
e.skew = ProtoExpert.new("vouchsafe.clock_skew", "The clocks of sender and capture differ by more than 30 s", expert.group.SEQUENCE, expert.severity.WARN)
e.expired = ProtoExpert.new("vouchsafe.expired", "The grant had ended", expert.group.SEQUENCE, expert.severity.WARN)
e.clear = ProtoExpert.new("vouchsafe.key_in_clear", "A client key in clear", expert.group.SECURITY, expert.severity.WARN)

local ip_headers = Field.new("ip.hdr_len")
local tcp_payload, udp_payload = Field.new("tcp.payload"), Field.new("udp.payload")
local syn, ack = Field.new("tcp.flags.syn"), Field.new("tcp.flags.ack")
local txt = Field.new("dns.txt")

-- The packet list shows a line for the first token of a packet.
local function say(pinfo, text)
    pinfo.cols.info:append(" [" .. text .. "]")
end

local function token(range, tree, pinfo)
    tree:add(f.version, range(0, 1))
    tree:add(f.suite, range(0, 1))
    local flags = tree:add(f.flags, range(1, 1))
    for _, flag in ipairs({ f.port, f.source, f.reply, f.single, f.bearer, f.ipv6, f.sealed }) do flags:add(flag, range(1, 1)) end
    tree:add(f.epoch, range(2, 1))
    tree:add(f.prefix, range(3, 1))
    local expires, made = tree:add(f.expires, range(4, 4)), nil
    tree:add(f.handle, range(8, 8))
    made = tree:add(f.time, range(16, 4))
    tree:add(f.nonce, range(20, 4))
    tree:add(f.tag, range(24, 12))
    local first, flag_bits, suite = range(0, 1):uint(), range(1, 1):uint(), range(0, 1):uint() % 16
    local longest = math.floor(flag_bits / 0x20) % 2 == 1 and 128 or 32
    if math.floor(first / 16) ~= 1 or suite < 2 or suite > 3 or flag_bits >= 0x80 or math.floor(flag_bits / 0x10) % 2 == 1
        or range(3, 1):uint() > longest then
        tree:add_proto_expert_info(e.malformed)
    end
    local now = math.floor(pinfo.abs_ts)
    if math.abs(range(16, 4):uint() - now) > CLOCK_SKEW then made:add_proto_expert_info(e.skew) end
    if range(4, 4):uint() <= now then expires:add_proto_expert_info(e.expired) end
    say(pinfo, "token of grant " .. tostring(range(8, 8):bytes()):lower())
end

local function ls_token(range, tree, pinfo)
    tree:add(f.unique_id, range(0, 5))
    tree:add(f.nonce1, range(5, 2))
    tree:add(f.nonce2, range(7, 2))
    tree:add(f.hash, range(9, 28))
    say(pinfo, "token of LS, unique id " .. tostring(range(0, 5):bytes()):lower())
end

local function key_transfer(range, tree, pinfo)
    tree:add(f.client_key, range(0, 28)):add_proto_expert_info(e.clear)
    tree:add(f.unique_id, range(28, 5))
    tree:add(f.nonce1, range(33, 2))
    say(pinfo, "key transfer")
end

local function shim(option, root, pinfo)
    local tree = root:add(vouchsafe, option, "Vouchsafe, shim")
    tree:add(f.carrier, option, "shim")
    tree:add(f.kind, option(2, 1))
    local kind, length = option(2, 1):uint(), option(1, 1):uint()
    if LENGTHS[kind] ~= length then
        tree:add_proto_expert_info(e.malformed)
    elseif kind == 1 then
        say(pinfo, "support")
    elseif kind == 2 then
        key_transfer(option(3, 35), tree, pinfo)
    elseif kind == 3 then
        ls_token(option(3, 37), tree, pinfo)
    else
        token(option(3, TOKEN_LENGTH), tree, pinfo)
    end
end

-- Shows the block at the end of a payload, if it is of one of these carriers.
local function tail(payload, root, pinfo, carriers)
    if not payload or payload.len < TAIL_LENGTH then return end
    local block = payload.range(payload.len - TAIL_LENGTH, TAIL_LENGTH)
    local carrier = CARRIERS[block(0, 4):string()]
    if not carrier or not carriers[carrier] then return end
    if (carrier == "stream" or carrier == "fast_open") and payload.len ~= TAIL_LENGTH then return end
    local tree = root:add(vouchsafe, block, "Vouchsafe, " .. carrier)
    tree:add(f.carrier, block, carrier)
    token(block(4, TOKEN_LENGTH), tree, pinfo)
end

local function bit(number, at)
    return math.floor(number / at) % 2 == 1
end

-- Reports whether a datagram has the form of a TCP segment that is a SYN (wire.md 4.8.2). Its payload begins with the data
-- offset and the flags.
local function is_turned_syn(payload)
    if not payload or payload.len < TCP_HEADER - UDP_HEADER + TAIL_LENGTH then return false end
    local offset, flags = math.floor(payload.range(0, 1):uint() / 16) * 4, payload.range(1, 1):uint()
    return offset >= TCP_HEADER and offset + TAIL_LENGTH <= payload.len + UDP_HEADER and bit(flags, 2) and not bit(flags, 16)
        and not bit(flags, 32)
end

-- Tunnels of this capture: the keys are both ends of a datagram, in either order.
local tunnels = {}

function vouchsafe.init()
    tunnels = {}
end

local function ends(pinfo)
    local from, to = tostring(pinfo.src) .. " " .. pinfo.src_port, tostring(pinfo.dst) .. " " .. pinfo.dst_port
    return from < to and from .. " " .. to or to .. " " .. from
end

local function record(range, tree, pinfo)
    local kind = range(0, 1):uint()
    tree:add(f.message, range(0, 1))
    tree:add(f.compression, range(1, 1))
    tree:add(f.treatment, range(1, 1))
    tree:add(f.seal_suite, range(2, 1))
    tree:add(f.detail, range(3, 1))
    tree:add(f.index, range(4, 4))
    tree:add(f.lane, range(8, 1))
    -- 56 bits: the lane's byte is left out.
    tree:add(f.number, range(9, 7), range(9, 7):uint64())
    tree:add(f.body, range(HEADER, range:len() - HEADER - TAG))
    tree:add(f.record_tag, range(range:len() - TAG, TAG))
    if not TREATMENTS[range(1, 1):uint() % 16] or not SEAL_SUITES[range(2, 1):uint()] then
        tree:add_proto_expert_info(e.malformed)
    end
    say(pinfo, "sealed " .. MESSAGES[kind])
end

local function offer(range, tree)
    tree:add(f.message, range(0, 1))
    tree:add(f.forward, range(1, 1))
    tree:add(f.suites, range(2, 1))
    tree:add(f.helped, range(3, 1))
    tree:add(f.index, range(4, 4))
end

local function is_initiation(range)
    return range:len() >= INITIATION and range(0, 1):uint() == 1 and range(1, 1):uint() - range(1, 1):uint() % 2 == 0x10
        and range(2, 1):uint() > 0 and range(4, 4):uint() > 0 and range(12, 4):uint() == 0 and range(16, 1):uint() >= 0x12
        and range(16, 1):uint() <= 0x13
end

-- Shows a message of a sealed tunnel. Any bytes look like a record, so a tunnel has to begin with its initiation.
local function sealed(payload, root, pinfo)
    if not payload then return end
    local range = payload.range
    if range:len() >= TAIL_LENGTH and range(range:len() - TAIL_LENGTH, 4):string() == "VSF1" then
        if range:len() == TAIL_LENGTH then return end
        range = range(0, range:len() - TAIL_LENGTH)
    end
    if is_initiation(range) then
        tunnels[ends(pinfo)] = true
        local tree = root:add(vouchsafe, range, "Vouchsafe, sealed tunnel")
        offer(range, tree)
        tree:add(f.time, range(8, 4))
        tree:add(f.handle, range(24, 8))
        tree:add(f.share, range(32, 32))
        tree:add(f.record_tag, range(64, 16))
        say(pinfo, "initiation of a sealed tunnel")
        if range:len() >= INITIATION + RECORD_LEAST then
            record(range(INITIATION, range:len() - INITIATION), tree:add(vouchsafe, range(INITIATION), "Early record"), pinfo)
        end
    elseif tunnels[ends(pinfo)] and range:len() >= HEADER then
        local kind = range(0, 1):uint()
        local tree = root:add(vouchsafe, range, "Vouchsafe, sealed tunnel")
        if kind == 2 and range:len() == RESPONSE then
            offer(range, tree)
            tree:add(f.other_index, range(8, 4))
            tree:add(f.refusal, range(12, 1))
            tree:add(f.share, range(16, 32))
            tree:add(f.record_tag, range(48, 16))
            say(pinfo, "response of a sealed tunnel")
        elseif kind >= 4 and kind <= 6 and range:len() >= RECORD_LEAST then
            record(range, tree, pinfo)
        elseif kind == 7 and range:len() == HEADER then
            tree:add(f.message, range(0, 1))
            tree:add(f.index, range(4, 4))
            say(pinfo, "unknown index")
        else
            tree:add_proto_expert_info(e.malformed)
        end
    end
end

function vouchsafe.dissector(buffer, pinfo, root)
    -- The shim: an outer IPv4 header of 20 bytes with protocol "IP in IP", followed by one of 60 bytes whose first
    -- option is ours.
    local outer, inner = ip_headers()
    if inner and inner.offset == outer.offset + 20 and buffer(outer.offset + 9, 1):uint() == IP_IN_IP
        and buffer(inner.offset, 1):uint() == 0x4f and inner.offset + 60 <= buffer:len()
        and buffer(inner.offset + OPTION_AT, 1):uint() == OPTION_TYPE then
        shim(buffer(inner.offset + OPTION_AT, 40), root, pinfo)
    elseif udp_payload() then
        tail(udp_payload(), root, pinfo, is_turned_syn(udp_payload()) and IN_TURNED or IN_DATAGRAMS)
        sealed(udp_payload(), root, pinfo)
    elseif syn() and syn().value and not ack().value then
        tail(tcp_payload(), root, pinfo, IN_SEGMENTS)
    end
    for _, record in ipairs({ txt() }) do
        if record.value:sub(1, 12) == "v=vouchsafe1" then
            local tree = root:add(vouchsafe, record.range, "Vouchsafe, discovery: a hint, never a credential")
            tree:add(f.record, record.range, record.value)
            say(pinfo, "discovery")
        end
    end
end

register_postdissector(vouchsafe)
