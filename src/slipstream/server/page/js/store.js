/** What the browser remembers. Works without storage too (private windows, blocked cookies): for this visit only. */

function safely(action) {
  try {
    return action();
  } catch {
    return null;
  }
}

export function read(key, storage = () => localStorage) {
  return safely(() => JSON.parse(storage().getItem(`slipstream.${key}`)));
}

export function write(key, value, storage = () => localStorage) {
  safely(() => storage().setItem(`slipstream.${key}`, JSON.stringify(value)));
}
