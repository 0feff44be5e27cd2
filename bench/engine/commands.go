package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	setName        = "bench"
	serverVersion  = "8.0.0"
	maxWireVersion = 25 // of MongoDB 8.0
	maxDocument    = 16 << 20
	firstBatch     = 101
	maxStored      = 2 << 30 // bytes of all documents: a bench takes no more of its machine

	badValue        = 2
	illegal         = 20
	cursorNotFound  = 43
	commandNotFound = 59
	duplicateKey    = 11000
	outOfDiskSpace  = 14031
)

// command is one question: its document, and the documents that came beside it.
type command struct {
	client    int64
	body      document
	sequence  string
	documents []document
}

// all returns the documents of this field, wherever they stand in the message.
func (c command) all(name string) []document {
	if c.sequence == name {
		return c.documents
	}
	found, _ := c.body.get(name)
	var documents []document
	for _, each := range document(found.data).values() {
		documents = append(documents, document(each.data))
	}
	return documents
}

func (c command) document(name string) document {
	found, _ := c.body.get(name)
	return document(found.data)
}

func (c command) number(name string) int {
	found, _ := c.body.get(name)
	return int(found.integer())
}

func (c command) isTrue(name string) bool {
	found, _ := c.body.get(name)
	return found.isTrue()
}

func (c command) isOrdered() bool {
	found, isThere := c.body.get("ordered")
	return !isThere || found.isTrue()
}

// refusal is an error that a driver gets, with its code.
type refusal struct {
	code int
	text string
}

func (r refusal) Error() string { return r.text }

type cursor struct {
	name string
	rest []document
}

// server is everything that this process keeps.
type server struct {
	address     string
	started     time.Time
	lock        sync.Mutex
	collections map[string]*collection
	cursors     map[int64]*cursor
	lastCursor  int64
	stored      atomic.Int64  // bytes of all documents
	clock       atomic.Uint64 // the time of the last write: seconds, and a number within them
}

func newServer(address string) *server {
	made := &server{address: address, started: time.Now()}
	made.collections, made.cursors = map[string]*collection{}, map[int64]*cursor{}
	made.tick()
	return made
}

// tick moves the time of the last write on, as each write of a replica set does.
func (s *server) tick() {
	for {
		before := s.clock.Load()
		after := max(before+1, uint64(time.Now().Unix())<<32|1)
		if s.clock.CompareAndSwap(before, after) {
			return
		}
	}
}

type handler func(s *server, asked command, out *builder) error

var handlers map[string]handler

func init() {
	handlers = map[string]handler{
		"hello": hello, "ismaster": hello, "ping": nothing, "buildinfo": buildInfo,
		"serverstatus": serverStatus, "endsessions": nothing, "aborttransaction": nothing,
		"insert": insert, "find": find, "getmore": getMore, "killcursors": killCursors,
		"update": update, "delete": remove, "count": count, "aggregate": aggregate,
		"createindexes": createIndexes, "listindexes": listIndexes,
		"listcollections": listCollections, "drop": drop, "dropdatabase": dropDatabase,
	}
}

// answer writes the document that answers a command.
func (s *server) answer(asked command, out *builder) {
	start := len(out.bytes)
	out.begin()
	if err := s.run(asked, out); err != nil {
		// What was written until then is not answered.
		out.bytes, out.open = out.bytes[:start], nil
		out.begin()
		code := badValue
		var refused refusal
		if errors.As(err, &refused) {
			code = refused.code
		}
		out.double("ok", 0)
		out.text("errmsg", err.Error())
		out.int32("code", code)
	} else {
		out.double("ok", 1)
	}
	now := s.clock.Load()
	out.document("$clusterTime", func() {
		out.timestamp("clusterTime", now)
		out.document("signature", func() {
			out.value("hash", value{kindBinary, append([]byte{20, 0, 0, 0, 0}, make([]byte, 20)...)})
			out.int64("keyId", 0)
		})
	})
	out.timestamp("operationTime", now)
	out.end()
}

func (s *server) run(asked command, out *builder) error {
	var name string
	asked.body.each(func(each []byte, _ value) bool {
		name = string(each)
		return false
	})
	work := handlers[strings.ToLower(name)]
	if work == nil {
		return refusal{commandNotFound, "no such command: '" + name + "'"}
	}
	if _, isThere := asked.body.get("startTransaction"); isThere {
		return refusal{illegal, "this engine has no transactions"}
	}
	return work(s, asked, out)
}

// collection returns the one that a command names in the field of this name, made if missing.
func (s *server) collection(asked command, field string) (*collection, string) {
	database, _ := asked.body.get("$db")
	its, _ := asked.body.get(field)
	name := database.text() + "." + its.text()
	s.lock.Lock()
	defer s.lock.Unlock()
	found := s.collections[name]
	if found == nil {
		found = newCollection(&s.stored)
		s.collections[name] = found
	}
	return found, name
}

func nothing(*server, command, *builder) error { return nil }

func hello(s *server, asked command, out *builder) error {
	now := time.Now().UnixMilli()
	out.bool("helloOk", true)
	out.bool("ismaster", true)
	out.bool("isWritablePrimary", true)
	out.bool("secondary", false)
	out.text("setName", setName)
	out.int32("setVersion", 1)
	out.text("me", s.address)
	out.text("primary", s.address)
	out.array("hosts", func() { out.text("0", s.address) })
	out.value("electionId", value{kindObjectID, []byte{0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 1}})
	out.document("lastWrite", func() {
		out.document("opTime", func() {
			out.timestamp("ts", s.clock.Load())
			out.int64("t", 1)
		})
		out.date("lastWriteDate", now)
	})
	out.int32("maxBsonObjectSize", maxDocument)
	out.int32("maxMessageSizeBytes", maxMessageSize)
	out.int32("maxWriteBatchSize", 100_000)
	out.date("localTime", now)
	out.int32("logicalSessionTimeoutMinutes", 30)
	out.int32("connectionId", int(asked.client))
	out.int32("minWireVersion", 0)
	out.int32("maxWireVersion", maxWireVersion)
	out.bool("readOnly", false)
	return nil
}

func buildInfo(_ *server, _ command, out *builder) error {
	out.text("version", serverVersion)
	out.array("versionArray", func() {
		for place, number := range []int{8, 0, 0, 0} {
			out.int32(strconv.Itoa(place), number)
		}
	})
	out.int32("maxBsonObjectSize", maxDocument)
	return nil
}

func serverStatus(s *server, _ command, out *builder) error {
	current := connections.Load()
	out.text("version", serverVersion)
	out.double("uptime", time.Since(s.started).Seconds())
	out.document("connections", func() {
		out.int32("current", int(current))
		out.int32("available", int(max(0, 50_000-current)))
		out.int64("totalCreated", opened.Load())
	})
	return nil
}

// writeErrors is what was refused of a command of several writes.
type writeErrors []func(out *builder)

func (e *writeErrors) duplicate(place int, name string, found *index, d document) {
	description := document{}
	label := "_id_"
	if found != nil {
		description = found.description
		named, _ := description.get("name")
		label = named.text()
	}
	*e = append(*e, func(out *builder) {
		out.int32("index", place)
		out.int32("code", duplicateKey)
		out.text("errmsg", fmt.Sprintf("E11000 duplicate key error collection: %s index: %s", name, label))
		keys := []string{"_id"}
		if found != nil {
			keys = found.paths
		}
		out.document("keyPattern", func() {
			for _, each := range keys {
				out.int32(each, 1)
			}
		})
		out.document("keyValue", func() {
			for _, each := range keys {
				there, _ := d.lookup(each)
				out.value(each, there)
			}
		})
	})
}

func (e writeErrors) write(out *builder) {
	if len(e) == 0 {
		return
	}
	out.array("writeErrors", func() {
		for place, each := range e {
			out.document(strconv.Itoa(place), func() { each(out) })
		}
	})
}

func insert(s *server, asked command, out *builder) error {
	its, name := s.collection(asked, "insert")
	var refused writeErrors
	done := 0
	its.lock.Lock()
	defer its.lock.Unlock()
	if s.stored.Load() > maxStored {
		return refusal{outOfDiskSpace, "this engine keeps no more documents"}
	}
	for place, each := range asked.all("documents") {
		if found, ok := its.insert(each); !ok {
			refused.duplicate(place, name, found, each)
			if asked.isOrdered() {
				break
			}
			continue
		}
		done++
	}
	s.tick()
	out.int32("n", done)
	refused.write(out)
	return nil
}

func find(s *server, asked command, out *builder) error {
	q, err := parse(asked.document("filter"))
	if err != nil {
		return err
	}
	if err := q.bound(asked.document("min"), asked.document("max")); err != nil {
		return err
	}
	its, name := s.collection(asked, "find")
	by := sortingOf(asked.document("sort"))
	fields := asked.document("projection")
	its.lock.Lock()
	var documents []document
	for _, each := range its.find(q, by, asked.number("skip"), asked.number("limit")) {
		documents = append(documents, each.document)
	}
	its.lock.Unlock()
	if len(fields) > 5 {
		for place, each := range documents {
			documents[place] = projected(each, fields)
		}
	}
	size := firstBatch
	if _, isThere := asked.body.get("batchSize"); isThere {
		size = asked.number("batchSize")
	}
	if asked.isTrue("singleBatch") {
		size = len(documents)
	}
	s.batch(out, "firstBatch", &cursor{name, documents}, 0, size)
	return nil
}

// batch answers the next size documents of a cursor, and keeps the rest of it under its number.
func (s *server) batch(out *builder, field string, its *cursor, number int64, size int) {
	out.document("cursor", func() {
		out.array(field, func() {
			bytes, taken := 0, 0
			for ; taken < min(size, len(its.rest)) && bytes < maxDocument; taken++ {
				each := its.rest[taken]
				out.value(strconv.Itoa(taken), value{kindDocument, each})
				bytes += len(each)
			}
			its.rest = its.rest[taken:]
		})
		s.lock.Lock()
		if len(its.rest) == 0 {
			delete(s.cursors, number)
			number = 0
		} else if number == 0 {
			s.lastCursor++
			number = s.lastCursor
			s.cursors[number] = its
		}
		s.lock.Unlock()
		out.int64("id", number)
		out.text("ns", its.name)
	})
}

func getMore(s *server, asked command, out *builder) error {
	wanted, _ := asked.body.get("getMore")
	number := wanted.integer()
	s.lock.Lock()
	its := s.cursors[number]
	s.lock.Unlock()
	if its == nil {
		return refusal{cursorNotFound, fmt.Sprintf("cursor id %d not found", number)}
	}
	size := len(its.rest)
	if asked.number("batchSize") > 0 {
		size = asked.number("batchSize")
	}
	s.batch(out, "nextBatch", its, number, size)
	return nil
}

func killCursors(s *server, asked command, out *builder) error {
	s.lock.Lock()
	defer s.lock.Unlock()
	out.array("cursorsKilled", func() {
		for place, each := range asked.document("cursors").values() {
			delete(s.cursors, each.integer())
			out.value(strconv.Itoa(place), each)
		}
	})
	return nil
}

// update puts documents in the place of others, or sets and removes fields of them.
func update(s *server, asked command, out *builder) error {
	its, name := s.collection(asked, "update")
	var refused writeErrors
	found, changed := 0, 0
	var made []func(out *builder)
	its.lock.Lock()
	defer its.lock.Unlock()
	for place, each := range asked.all("updates") {
		filter, _ := each.get("q")
		change, _ := each.get("u")
		q, err := parse(document(filter.data))
		if err != nil {
			return err
		}
		limit := 1
		if multi, _ := each.get("multi"); multi.isTrue() {
			limit = 0
		}
		there := its.find(q, nil, 0, limit)
		for _, one := range there {
			after, err := applied(one.document, document(change.data))
			if err != nil {
				return err
			}
			if against, ok := its.replace(one, after); !ok {
				refused.duplicate(place, name, against, after)
				break
			}
			found, changed = found+1, changed+1
		}
		if upsert, _ := each.get("upsert"); upsert.isTrue() && len(there) == 0 {
			after, err := applied(fieldsOf(q), document(change.data))
			if err != nil {
				return err
			}
			if against, ok := its.insert(after); !ok {
				refused.duplicate(place, name, against, after)
			} else {
				found++
				made = append(made, func(out *builder) {
					id, _ := after.get("_id")
					out.int32("index", place)
					out.value("_id", id)
				})
			}
		}
		if len(refused) > 0 && asked.isOrdered() {
			break
		}
	}
	s.tick()
	out.int32("n", found)
	out.int32("nModified", changed)
	if len(made) > 0 {
		out.array("upserted", func() {
			for place, each := range made {
				out.document(strconv.Itoa(place), func() { each(out) })
			}
		})
	}
	refused.write(out)
	return nil
}

// fieldsOf returns a document of what a query wants to be equal: what an upsert begins with.
func fieldsOf(q query) document {
	out := &builder{}
	out.begin()
	for path := range q.conditions {
		if equal, ok := q.equal(path); ok && !strings.Contains(path, ".") {
			out.value(path, equal)
		}
	}
	out.end()
	return document(out.bytes)
}

// applied returns what an update makes of d: $set, $unset and $inc of outer fields, or another
// document.
func applied(d, change document) (document, error) {
	set, unset := map[string]value{}, map[string]bool{}
	order := []string{}
	isWhole := true
	var err error
	change.each(func(name []byte, v value) bool {
		switch operator := string(name); operator {
		case "$set", "$unset", "$inc":
			isWhole = false
			document(v.data).each(func(field []byte, each value) bool {
				if strings.Contains(string(field), ".") {
					err = errors.New("this engine changes outer fields only")
				}
				if operator == "$unset" {
					unset[string(field)] = true
					return true
				}
				if operator == "$inc" {
					before, isThere := d.get(string(field))
					if each, err = sum(before, isThere, each); err != nil {
						return false
					}
				}
				set[string(field)] = each
				order = append(order, string(field))
				return true
			})
		default:
			if strings.HasPrefix(operator, "$") {
				err = fmt.Errorf("this engine does not know the update %s", operator)
			}
		}
		return err == nil
	})
	if err != nil {
		return nil, err
	}
	out := &builder{}
	out.begin()
	if isWhole {
		id, _ := d.get("_id")
		if own, isThere := change.get("_id"); isThere {
			id = own
		}
		out.value("_id", id)
		change.each(func(name []byte, v value) bool {
			if string(name) != "_id" {
				out.value(string(name), v)
			}
			return true
		})
	} else {
		d.each(func(name []byte, v value) bool {
			if changed, ok := set[string(name)]; ok {
				v = changed
				delete(set, string(name))
			}
			if !unset[string(name)] {
				out.value(string(name), v)
			}
			return true
		})
		for _, name := range order {
			if added, ok := set[name]; ok {
				out.value(name, added)
			}
		}
	}
	out.end()
	return document(out.bytes), nil
}

// sum returns what $inc makes of a field: of whole numbers alone.
func sum(before value, isThere bool, by value) (value, error) {
	if !isThere {
		return by, nil
	}
	for _, each := range []value{before, by} {
		if each.kind != kindInt32 && each.kind != kindInt64 {
			return null, errors.New("this engine adds whole numbers only")
		}
	}
	added := uint64(before.integer() + by.integer())
	if before.kind == kindInt32 && by.kind == kindInt32 {
		return value{kindInt32, binary.LittleEndian.AppendUint32(nil, uint32(added))}, nil
	}
	return value{kindInt64, binary.LittleEndian.AppendUint64(nil, added)}, nil
}

func remove(s *server, asked command, out *builder) error {
	its, _ := s.collection(asked, "delete")
	done := 0
	its.lock.Lock()
	defer its.lock.Unlock()
	for _, each := range asked.all("deletes") {
		filter, _ := each.get("q")
		limit, _ := each.get("limit")
		if len(filter.data) <= 5 && limit.integer() == 0 {
			done += len(its.records)
			its.clear()
			continue
		}
		q, err := parse(document(filter.data))
		if err != nil {
			return err
		}
		for _, one := range its.find(q, nil, 0, int(limit.integer())) {
			its.delete(one)
			done++
		}
	}
	s.tick()
	out.int32("n", done)
	return nil
}

func count(s *server, asked command, out *builder) error {
	q, err := parse(asked.document("query"))
	if err != nil {
		return err
	}
	its, _ := s.collection(asked, "count")
	its.lock.Lock()
	defer its.lock.Unlock()
	if len(q.filter) <= 5 {
		out.int32("n", len(its.records))
	} else {
		out.int32("n", len(its.find(q, nil, asked.number("skip"), asked.number("limit"))))
	}
	return nil
}

// aggregate answers what drivers count documents with: $match, then $group with a sum of ones.
func aggregate(s *server, asked command, out *builder) error {
	stages := asked.all("pipeline")
	q, err := parse(nil)
	if len(stages) == 2 {
		if filter, isThere := stages[0].get("$match"); isThere {
			q, err = parse(document(filter.data))
		}
	}
	if err != nil {
		return err
	}
	var grouped value
	isCount := false
	if len(stages) > 0 {
		grouped, isCount = stages[len(stages)-1].get("$group")
	}
	if !isCount || len(stages) > 2 {
		return errors.New("this engine aggregates $match and $group to count")
	}
	its, name := s.collection(asked, "aggregate")
	its.lock.Lock()
	number := len(its.find(q, nil, 0, 0))
	its.lock.Unlock()
	made := &builder{}
	made.begin()
	document(grouped.data).each(func(field []byte, v value) bool {
		if string(field) == "_id" {
			made.value("_id", v)
		} else {
			made.int32(string(field), number)
		}
		return true
	})
	made.end()
	var documents []document
	if number > 0 {
		documents = []document{made.bytes}
	}
	s.batch(out, "firstBatch", &cursor{name, documents}, 0, 1)
	return nil
}

func createIndexes(s *server, asked command, out *builder) error {
	its, name := s.collection(asked, "createIndexes")
	its.lock.Lock()
	defer its.lock.Unlock()
	before := len(its.indexes) + 1
	for _, each := range asked.all("indexes") {
		label, _ := each.get("name")
		if its.has(label.text()) {
			continue
		}
		made := newIndex(each)
		for _, record := range its.records {
			key, ok := made.key(record.document)
			if made.isUnique && ok && len(made.found[key]) > 0 {
				return refusal{duplicateKey, "E11000 duplicate key error collection: " + name}
			}
			made.add(record)
		}
		its.indexes = append(its.indexes, made)
	}
	out.int32("numIndexesBefore", before)
	out.int32("numIndexesAfter", len(its.indexes)+1)
	return nil
}

func (c *collection) has(name string) bool {
	for _, each := range c.indexes {
		label, _ := each.description.get("name")
		if label.text() == name {
			return true
		}
	}
	return false
}

func listIndexes(s *server, asked command, out *builder) error {
	its, name := s.collection(asked, "listIndexes")
	byID := &builder{}
	byID.begin()
	byID.int32("v", 2)
	byID.document("key", func() { byID.int32("_id", 1) })
	byID.text("name", "_id_")
	byID.end()
	documents := []document{byID.bytes}
	its.lock.Lock()
	for _, each := range its.indexes {
		documents = append(documents, each.description)
	}
	its.lock.Unlock()
	s.batch(out, "firstBatch", &cursor{name, documents}, 0, len(documents))
	return nil
}

func listCollections(s *server, asked command, out *builder) error {
	q, err := parse(asked.document("filter"))
	if err != nil {
		return err
	}
	database, _ := asked.body.get("$db")
	var documents []document
	s.lock.Lock()
	for name := range s.collections {
		if its, ok := strings.CutPrefix(name, database.text()+"."); ok {
			made := &builder{}
			made.begin()
			made.text("name", its)
			made.text("type", "collection")
			made.document("options", func() {})
			made.end()
			if q.matches(made.bytes) {
				documents = append(documents, made.bytes)
			}
		}
	}
	s.lock.Unlock()
	name := database.text() + ".$cmd.listCollections"
	s.batch(out, "firstBatch", &cursor{name, documents}, 0, len(documents))
	return nil
}

func drop(s *server, asked command, _ *builder) error {
	its, name := s.collection(asked, "drop")
	s.lock.Lock()
	defer s.lock.Unlock()
	delete(s.collections, name)
	its.drop()
	return nil
}

func dropDatabase(s *server, asked command, _ *builder) error {
	database, _ := asked.body.get("$db")
	s.lock.Lock()
	defer s.lock.Unlock()
	for name, its := range s.collections {
		if strings.HasPrefix(name, database.text()+".") {
			delete(s.collections, name)
			its.drop()
		}
	}
	return nil
}
