/**
 * Creation of DOM nodes. Texts become text nodes, so no text from a log is parsed as HTML.
 *
 * @module
 */

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

/** Attributes that a browser follows, loads or runs; their values must not come from a log. */
const URL_ATTRIBUTES = new Set(["href", "src", "action", "formaction", "xlink:href"]);

/**
 * @typedef {string | number | boolean | null | undefined | EventListener | ((event: any) => void)} AttributeValue
 * @typedef {Node | string | number | null | undefined | false} Child
 */

/**
 * Return a new HTML element. `class` and other attributes are set as given, `true` sets an attribute without a value,
 * `false`, null and undefined leave it out; a function under `onclick` and the like becomes a listener.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, AttributeValue> | null} [attributes]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  setAttributes(node, attributes);
  appendChildren(node, children);
  return node;
}

/**
 * Return a new SVG element.
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, AttributeValue> | null} [attributes]
 * @param {...(Child | Child[])} children
 * @returns {SVGElementTagNameMap[Tag]}
 */
export function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG_NAMESPACE, tag);
  setAttributes(node, attributes);
  appendChildren(node, children);
  return node;
}

/**
 * Remove all children of a node, then add the given ones.
 * @param {Element} node
 * @param {...(Child | Child[])} children
 * @returns {void}
 */
export function clear(node, ...children) {
  node.replaceChildren();
  appendChildren(node, children);
}

/**
 * Listen to an event; returns a function that stops listening.
 * @param {EventTarget} node
 * @param {string} type
 * @param {(event: any) => void} listener
 * @param {AddEventListenerOptions} [options]
 * @returns {() => void}
 */
export function on(node, type, listener, options) {
  node.addEventListener(type, listener, options);
  return () => node.removeEventListener(type, listener, options);
}

/**
 * Set the text of a node unless it is the same already, which would cost a layout. A text node that is there is kept:
 * a new one would cost more than its text.
 * @param {Node} node
 * @param {string} text
 * @returns {void}
 */
export function setText(node, text) {
  const only = node.firstChild;
  if (only instanceof Text && !only.nextSibling) {
    if (only.data !== text) only.data = text;
  } else if (node.textContent !== text) node.textContent = text;
}

/**
 * Set the class of an element unless it is the same already.
 * @param {Element} node
 * @param {string} name
 * @returns {void}
 */
export function setClass(node, name) {
  if (node.className !== name) node.setAttribute("class", name);
}

/**
 * Return a function that runs `work` once before the next frame, however often it is called.
 * @param {() => void} work
 * @returns {() => void}
 */
export function oncePerFrame(work) {
  let isWaiting = false;
  return () => {
    if (isWaiting) return;
    isWaiting = true;
    requestAnimationFrame(() => {
      isWaiting = false;
      work();
    });
  };
}

/**
 * Return a function that runs `work` after `milliseconds` without a further call.
 * @param {() => void} work
 * @param {number} milliseconds
 * @returns {() => void}
 */
export function debounce(work, milliseconds) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = window.setTimeout(work, milliseconds);
  };
}

/**
 * Copy a text to the clipboard; returns whether that worked.
 * @param {string} text
 * @returns {Promise<boolean>}
 */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

/**
 * A page from disk has no clipboard API; a selected text field still can be copied.
 * @param {string} text
 * @returns {boolean}
 */
function copyBySelection(text) {
  const field = el("textarea", { class: "visually-hidden", "aria-hidden": "true", tabindex: -1 });
  field.value = text;
  const focused = /** @type {HTMLElement | null} */ (document.activeElement);
  document.body.append(field);
  field.select();
  try {
    return document.execCommand("copy");
  } catch {
    return false;
  } finally {
    field.remove();
    focused?.focus();
  }
}

/**
 * @param {Element} node
 * @param {Record<string, AttributeValue> | null | undefined} attributes
 * @returns {void}
 */
function setAttributes(node, attributes) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) {
      if (typeof value === "function") node.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    } else if (name !== "style" && isSafeAttribute(name, String(value))) {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
}

/**
 * Whether an attribute can be set: an address must stay on this page or this server.
 * @param {string} name
 * @param {string} value
 * @returns {boolean}
 */
function isSafeAttribute(name, value) {
  return !URL_ATTRIBUTES.has(name.toLowerCase()) || /^(?:[#?]|\.?\/(?![/\\])|[\w-]+(?:[/?#]|\.\w+|$))/.test(value);
}

/**
 * @param {Element} node
 * @param {(Child | Child[])[]} children
 * @returns {void}
 */
function appendChildren(node, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    node.append(typeof child === "object" ? child : String(child));
  }
}
