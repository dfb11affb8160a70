/**
 * Light, dark or the system's colours.
 *
 * @module
 */

import { el, on } from "./dom.js";

/** @typedef {"system" | "light" | "dark"} Theme */

const THEME_KEY = "foveal-inspector-theme";
/** @type {Theme[]} */
const THEMES = ["system", "light", "dark"];
const THEME_MARKS = { system: "◐", light: "☀", dark: "☾" };

/**
 * Apply the stored theme and return the button that changes it.
 * @param {(theme: Theme) => void} onChange called after a change
 * @returns {{element: HTMLButtonElement, next: () => void}}
 */
export function createThemeButton(onChange) {
  let theme = storedTheme();
  const button = el("button", { type: "button", class: "quiet theme-button" });
  const show = () => {
    applyTheme(theme);
    button.textContent = `${THEME_MARKS[theme]} ${theme}`;
    button.setAttribute("aria-label", `Colours: ${theme}`);
    button.title = "Change the colours (t)";
  };
  const next = () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    storeTheme(theme);
    show();
    onChange(theme);
  };
  on(button, "click", next);
  show();
  return { element: button, next };
}

/**
 * Apply the theme that was chosen before, as early as possible.
 * @returns {void}
 */
export function applyStoredTheme() {
  applyTheme(storedTheme());
}

/**
 * @param {Theme} theme
 * @returns {void}
 */
function applyTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

/**
 * Return the stored theme; storage can be forbidden, for example in a page from disk.
 * @returns {Theme}
 */
function storedTheme() {
  try {
    const stored = /** @type {Theme} */ (localStorage.getItem(THEME_KEY));
    return THEMES.includes(stored) ? stored : "system";
  } catch {
    return "system";
  }
}

/**
 * @param {Theme} theme
 * @returns {void}
 */
function storeTheme(theme) {
  try {
    localStorage.setItem(THEME_KEY, theme);
  } catch {
    // The choice lasts until the page is closed.
  }
}
