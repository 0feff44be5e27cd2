package main

import (
	"slices"
	"sort"
	"sync"
	"sync/atomic"
)

// record is one document; it stays the same one when the document is replaced.
type record struct {
	id       value
	document document
}

// collection is its documents by _id, in the order of _id, and by what its indexes have.
type collection struct {
	lock    sync.Mutex
	stored  *atomic.Int64 // bytes of all documents, of all collections
	records map[string]*record
	// All records in the order of their _id; nil when it has to be made anew.
	ordered []*record
	indexes []*index
}

// index finds records by its first field, or by all of its fields if it is unique.
type index struct {
	description document
	paths       []string
	isUnique    bool
	isSparse    bool
	// A list is indexed by each of its elements, which this one does not do: then it is not used.
	hasList bool
	found   map[string]map[*record]struct{}
}

func newCollection(stored *atomic.Int64) *collection {
	return &collection{stored: stored, records: map[string]*record{}}
}

func newIndex(description document) *index {
	made := &index{description: description, found: map[string]map[*record]struct{}{}}
	keys, _ := description.get("key")
	document(keys.data).each(func(name []byte, _ value) bool {
		made.paths = append(made.paths, string(name))
		return true
	})
	unique, _ := description.get("unique")
	sparse, _ := description.get("sparse")
	made.isUnique, made.isSparse = unique.isTrue(), sparse.isTrue()
	if !made.isUnique {
		made.paths = made.paths[:1]
	}
	return made
}

// key returns where a document stands in this index; false where a sparse one skips it.
func (i *index) key(d document) (string, bool) {
	var key []byte
	isThere := false
	for _, path := range i.paths {
		found, ok := d.lookup(path)
		isThere = isThere || ok
		i.hasList = i.hasList || found.kind == kindArray
		part := found.key()
		key = append(append(key, byte(len(part)), byte(len(part)>>8), byte(len(part)>>16)), part...)
	}
	return string(key), isThere || !i.isSparse
}

func (i *index) add(r *record) {
	key, ok := i.key(r.document)
	if !ok {
		return
	}
	if i.found[key] == nil {
		i.found[key] = map[*record]struct{}{}
	}
	i.found[key][r] = struct{}{}
}

func (i *index) remove(r *record) {
	key, _ := i.key(r.document)
	delete(i.found[key], r)
	if len(i.found[key]) == 0 {
		delete(i.found, key)
	}
}

// serves returns the records that a query may find, where this index can tell.
func (i *index) serves(q query) (map[*record]struct{}, bool) {
	if i.hasList {
		return nil, false
	}
	wanted := &builder{}
	wanted.begin()
	for _, path := range i.paths {
		equal, ok := q.equal(path)
		if !ok || equal.kind == kindArray || i.isSparse && equal.kind == kindNull {
			return nil, false
		}
		wanted.value(path, equal)
	}
	wanted.end()
	key, _ := i.key(document(wanted.bytes))
	return i.found[key], true
}

// duplicate returns the unique index that d contradicts, nil if there is none; old is replaced.
func (c *collection) duplicate(d document, old *record) *index {
	for _, each := range c.indexes {
		if !each.isUnique {
			continue
		}
		key, ok := each.key(d)
		for there := range each.found[key] {
			if ok && there != old {
				return each
			}
		}
	}
	return nil
}

// insert stores d; false and the index, nil for that of _id, if there is such a document.
func (c *collection) insert(d document) (*index, bool) {
	id, _ := d.get("_id")
	key := id.key()
	if c.records[key] != nil {
		return nil, false
	}
	if found := c.duplicate(d, nil); found != nil {
		return found, false
	}
	made := &record{id, d}
	c.records[key] = made
	c.stored.Add(int64(len(d)))
	for _, each := range c.indexes {
		each.add(made)
	}
	if last := len(c.ordered); last+1 == len(c.records) &&
		(last == 0 || compare(c.ordered[last-1].id, id) < 0) {
		c.ordered = append(c.ordered, made)
	} else {
		c.ordered = nil
	}
	return nil, true
}

func (c *collection) replace(r *record, d document) (*index, bool) {
	if found := c.duplicate(d, r); found != nil {
		return found, false
	}
	for _, each := range c.indexes {
		each.remove(r)
	}
	c.stored.Add(int64(len(d) - len(r.document)))
	r.document = d
	for _, each := range c.indexes {
		each.add(r)
	}
	return nil, true
}

func (c *collection) delete(r *record) {
	delete(c.records, r.id.key())
	c.stored.Add(-int64(len(r.document)))
	for _, each := range c.indexes {
		each.remove(r)
	}
	c.ordered = nil
}

// clear removes all documents; the indexes stay.
func (c *collection) clear() {
	for _, each := range c.records {
		c.stored.Add(-int64(len(each.document)))
	}
	c.records, c.ordered = map[string]*record{}, nil
	for _, each := range c.indexes {
		each.found = map[string]map[*record]struct{}{}
	}
}

// drop clears a collection that commands on their way may still have.
func (c *collection) drop() {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.clear()
}

// find returns the records that q finds, in order, without the first skip, limit of them at most.
func (c *collection) find(q query, by sorting, skip, limit int) []*record {
	candidates, inOrder := c.candidates(q, by)
	enough := 0 // of them, none if all are needed
	if inOrder && limit > 0 {
		enough = skip + limit
	}
	var found []*record
	for _, each := range candidates {
		if q.matches(each.document) {
			found = append(found, each)
			if len(found) == enough {
				break
			}
		}
	}
	if !inOrder {
		slices.SortStableFunc(found, func(a, b *record) int { return by.compare(a.document, b.document) })
	}
	found = found[min(skip, len(found)):]
	if limit > 0 {
		found = found[:min(limit, len(found))]
	}
	return found
}

// candidates returns what q can find, by the narrowest way there is, and whether in order.
func (c *collection) candidates(q query, by sorting) ([]*record, bool) {
	for _, each := range q.conditions["_id"] {
		switch each.operator {
		case "$eq":
			return c.withIDs([]value{each.value}), true
		case "$in":
			return c.withIDs(document(each.value.data).values()), len(by) == 0
		}
	}
	var fewest map[*record]struct{}
	hasIndex := false
	for _, each := range c.indexes {
		if found, ok := each.serves(q); ok && (!hasIndex || len(found) < len(fewest)) {
			fewest, hasIndex = found, true
		}
	}
	if hasIndex {
		records := make([]*record, 0, len(fewest))
		for each := range fewest {
			records = append(records, each)
		}
		// A map has no order; a question without one is answered in that of _id.
		slices.SortFunc(records, func(a, b *record) int { return compare(a.id, b.id) })
		return records, len(by) == 0
	}
	return c.between(q, by.byID() < 0), len(by) == 0 || by.byID() != 0
}

func (c *collection) withIDs(ids []value) []*record {
	var records []*record
	for _, id := range ids {
		if found := c.records[id.key()]; found != nil {
			records = append(records, found)
		}
	}
	return records
}

// between returns the records within the bounds that q has for _id, in its order.
func (c *collection) between(q query, descending bool) []*record {
	if len(c.ordered) != len(c.records) {
		c.ordered = make([]*record, 0, len(c.records))
		for _, each := range c.records {
			c.ordered = append(c.ordered, each)
		}
		slices.SortFunc(c.ordered, func(a, b *record) int { return compare(a.id, b.id) })
	}
	records := c.ordered
	for _, each := range q.conditions["_id"] {
		// Where the first one stands that is not below the bound, or that is above it.
		at := func(order int) int {
			return sort.Search(len(records), func(place int) bool {
				return compare(records[place].id, each.value) >= order
			})
		}
		switch each.operator {
		case "$gt":
			records = records[at(1):]
		case "$gte":
			records = records[at(0):]
		case "$lt":
			records = records[:at(0)]
		case "$lte":
			records = records[:at(1)]
		}
	}
	if !descending {
		return records
	}
	records = slices.Clone(records)
	slices.Reverse(records)
	return records
}
