// Keeps conversations in IndexedDB: summaries for the list, and whole conversations. If the browser refuses, as in some private
// windows, conversations are kept in memory.
const SUMMARIES = "summaries", CONVERSATIONS = "conversations";
const result_of = request => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});
const committed = transaction => new Promise((resolve, reject) => {
  transaction.oncomplete = () => resolve();
  transaction.onabort = () => reject(transaction.error ?? new Error("the browser has no space left"));
});
const database = new Promise(resolve => {
  try {
    const request = indexedDB.open("llm-worker-chat", 1);
    request.onupgradeneeded = () => [SUMMARIES, CONVERSATIONS].forEach(name => request.result.createObjectStore(name, { keyPath: "id" }));
    request.onsuccess = () => resolve(request.result);
    request.onerror = request.onblocked = () => resolve(null);
  } catch {
    resolve(null);
  }
});
const memory = new Map();
const summary_of = ({ id, title, created, updated }) => ({ id, title, created, updated });
// Tells the other tabs which conversations have changed.
const channel = new BroadcastChannel("llm-worker-chat");

const storage = {
  // Returns false if conversations are lost with the tab.
  persistent: async () => Boolean(await database),

  // Returns the summaries of all conversations, the last changed first.
  async list() {
    const db = await database;
    const summaries = db ? await result_of(db.transaction(SUMMARIES).objectStore(SUMMARIES).getAll()) : [...memory.values()].map(summary_of);
    return summaries.sort((a, b) => b.updated - a.updated);
  },

  async read(id) {
    const db = await database;
    return db ? result_of(db.transaction(CONVERSATIONS).objectStore(CONVERSATIONS).get(id)) : structuredClone(memory.get(id));
  },

  async write(conversation) {
    const db = await database;
    if (db) {
      const transaction = db.transaction([SUMMARIES, CONVERSATIONS], "readwrite");
      transaction.objectStore(SUMMARIES).put(summary_of(conversation));
      transaction.objectStore(CONVERSATIONS).put(conversation);
      await committed(transaction);
    } else {
      memory.set(conversation.id, structuredClone(conversation));
    }
    channel.postMessage([conversation.id]);
  },

  async remove(ids) {
    const db = await database;
    if (db) {
      const transaction = db.transaction([SUMMARIES, CONVERSATIONS], "readwrite");
      for (const id of ids) [SUMMARIES, CONVERSATIONS].forEach(name => transaction.objectStore(name).delete(id));
      await committed(transaction);
    } else {
      ids.forEach(id => memory.delete(id));
    }
    channel.postMessage(ids);
  },

  // Calls `visit` with each conversation. Only one is in memory at a time.
  async each(visit) {
    const db = await database;
    if (!db) return [...memory.values()].forEach(visit);
    const request = db.transaction(CONVERSATIONS).objectStore(CONVERSATIONS).openCursor();
    return new Promise((resolve, reject) => {
      request.onerror = () => reject(request.error);
      request.onsuccess = () => {
        const cursor = request.result;
        if (!cursor) return resolve();
        visit(cursor.value);
        cursor.continue();
      };
    });
  },
};
